// Device texts carried in the program: every .cuh of lab/, by its path from there ("roof_gpu.cuh", "ladder/tiled.cuh").
// Written by rapt_embed (cmake/RaptLab.cmake); used by roof_gpu.cpp and the ladder.
#pragma once

#include <map>
#include <string_view>

namespace rapt::lab {

const std::map<std::string_view, std::string_view>& device_texts();

}  // namespace rapt::lab
