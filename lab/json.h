// The function dump(), which writes JSON as text, is compiled once, by lab/json.cpp. Otherwise every file that prints
// JSON would compile it, which takes about a second. Other files do not include this header: they include
// <nlohmann/json.hpp>, and the precompiled header (cmake/RaptLab.cmake) contains this one.
#pragma once

#include <nlohmann/json.hpp>

extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
