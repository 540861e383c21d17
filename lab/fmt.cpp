// Compiles the functions of fmt once. Debian has a compiled fmt only as a shared library. If the program is copied to
// another machine, this library can be missing there. If fmt were used header-only, every file that prints would
// compile it again, and that takes half of the compile time of these files. cmake/RaptLab.cmake uses this file for fmt
// 9, because the templates below are those of fmt 9. It uses other versions of fmt header-only.
#ifndef FMT_HEADER_ONLY

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;

}  // namespace detail
FMT_END_NAMESPACE

#endif
