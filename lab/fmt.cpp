// The functions of fmt, compiled once. Debian has a compiled fmt only as a shared library, which a program copied to
// another machine would lack. Header-only, fmt would be compiled again in every file that prints: half of their time.
// cmake/RaptLab.cmake uses this for fmt 9, whose templates are named here, and other versions header-only.
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
