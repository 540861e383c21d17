// Keys and values in pages (block_table) of a file. Gathers them into dense or packed tensors: these are what the
// oracle reads, and check/paged.h puts them into pages again for the library. Called by load.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check/tensor.h"

namespace rapt::lab {

// Where the keys of a paged cache are.
struct PagePlaces {
  int64_t page_size = 0, longest = 0;        // longest: max_seqlen_k
  std::vector<int64_t> lengths;              // keys of each sequence
  std::vector<std::vector<int64_t>> tables;  // the pages of each sequence

  int64_t total() const;  // keys of all sequences
};

// Reads block_table. path: for error sentences. k: [num_pages, heads_k, page_size, dim]. longest: max_seqlen_k, or -1:
// pages * page_size. used: seqused_k, or empty: all sequences have the longest length.
PagePlaces read_places(const std::string& path, const check::HostTensor& block_table, const check::HostTensor& k,
                       int64_t longest, const std::vector<int64_t>& used);

// Copies the rows that sequences use from pages [num_pages, heads, page_size, dim] to a tensor [batch, heads, seqlen,
// dim], or packed [total, heads, dim]. Other rows of `to` stay as they are.
void gather(const PagePlaces& places, const check::HostTensor& pages, const check::HostTensor& to);

}  // namespace rapt::lab
