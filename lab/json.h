// Writing JSON as text (dump) is compiled once, by lab/json.cpp. Otherwise every file that prints JSON would compile
// it, in about a second. In the precompiled header (cmake/RaptLab.cmake); files include <nlohmann/json.hpp>.
#pragma once

#include <nlohmann/json.hpp>

extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
