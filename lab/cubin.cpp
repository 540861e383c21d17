// Reads a cubin's section .text.ENTRY and counts its instructions by kind. A cubin is a 64-bit little-endian ELF file
// (System V ABI, "Object Files"). NVIDIA does not publish the instruction format. To find the codes below, we compiled
// kernels that differ in one instruction; tests/cpu/ladder_test.cpp does the same.
#include "lab/cubin.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace rapt::lab {
namespace {

template <class T>
T read(std::string_view bytes, uint64_t at) {
  if (bytes.size() < sizeof(T) || at > bytes.size() - sizeof(T)) invalid("cubin: file ends before byte ", at);
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string_view slice(std::string_view bytes, uint64_t at, uint64_t size) {
  if (at > bytes.size() || size > bytes.size() - at) invalid("cubin: file ends before byte ", at, " + ", size);
  return bytes.substr(at, size);
}

struct Section {
  uint32_t name;  // offset in the name table
  std::string_view bytes;
};

// Elf64_Ehdr: e_shoff at 40, e_shentsize, e_shnum, e_shstrndx from 58 on. Elf64_Shdr: sh_name at 0, sh_type at 4,
// sh_offset at 24, sh_size at 32.
Section section(std::string_view elf, uint16_t index) {
  const uint64_t at = read<uint64_t>(elf, 40) + uint64_t{index} * read<uint16_t>(elf, 58);
  constexpr uint32_t no_bits = 8;  // SHT_NOBITS: the section has no bytes in the file
  const bool empty = read<uint32_t>(elf, at + 4) == no_bits;
  return {read<uint32_t>(elf, at),
          empty ? std::string_view() : slice(elf, read<uint64_t>(elf, at + 24), read<uint64_t>(elf, at + 32))};
}

}  // namespace

std::optional<std::string_view> cubin_section(std::string_view elf, std::string_view wanted) {
  if (!elf.starts_with("\x7f"
                       "ELF\x02\x01"))
    invalid("cubin: is not a 64-bit little-endian ELF file");
  const std::string_view names = section(elf, read<uint16_t>(elf, 62)).bytes;
  for (uint16_t i = 0; i < read<uint16_t>(elf, 60); ++i) {
    const Section found = section(elf, i);
    if (found.name > names.size()) invalid("cubin: the name of section ", i, " lies outside the name table");
    const std::string_view rest = names.substr(found.name);
    if (rest.substr(0, rest.find('\0')) == wanted) return found.bytes;
  }
  return std::nullopt;
}

namespace {

// The low nine bits are the operation. The next three bits are the source of the operands.
enum Operation : unsigned {
  ffma = 0x023,
  hmma = 0x03c,
  qmma = 0x07a,
  ldsm = 0x03b,
  mufu = 0x108,
  ldg = 0x181,
  ldl = 0x183,
  lds = 0x184,
  stl = 0x187,
  sts = 0x188,
  ldgsts = 0x1ae,
  arrives = 0x1b0,
  hgmma = 0x1f0,
  qgmma = 0x1f3
};

void count(uint64_t low, uint64_t high, InstructionCounts& counts) {
  constexpr uint64_t never = 0xf;  // a predicate that is never true; ptxas adds such loads as padding before cp.async
  if ((low >> 12 & 0xf) == never) return;
  const bool is_16 = (high >> 9 & 7) == 6;  // bits 73 to 75 of a memory access are 4, 5, 6 for 4, 8, 16 bytes
  switch (low & 0x1ff) {
    case ffma: ++counts.ffma; break;
    case hmma: ++counts.hmma; break;
    case qmma: ++counts.qmma; break;
    case hgmma: ++counts.hgmma; break;
    case qgmma: ++counts.qgmma; break;
    case ldsm: ++counts.ldsm; break;
    case mufu: ++counts.mufu; break;
    case ldgsts: ++counts.ldgsts; break;
    case arrives: ++counts.arrives; break;
    case ldg: ++counts.ldg, counts.ldg_16 += is_16; break;
    case lds: ++counts.lds, counts.lds_16 += is_16; break;
    case sts: ++counts.sts, counts.sts_16 += is_16; break;
    case ldl:
    case stl: ++counts.local; break;
    default: break;
  }
}

}  // namespace

InstructionCounts count_instructions(std::string_view cubin, std::string_view entry) {
  const auto found = cubin_section(cubin, concat(".text.", entry));
  if (!found) invalid("cubin: it has no kernel ", entry);
  const std::string_view code = *found;
  if (code.empty() || code.size() % instruction_bytes != 0)
    invalid("cubin: the code of ", entry, " has ", code.size(), " bytes: must be a multiple of ", instruction_bytes);
  InstructionCounts counts;
  for (size_t at = 0; at < code.size(); at += instruction_bytes) {
    count(read<uint64_t>(code, at), read<uint64_t>(code, at + 8), counts);
    ++counts.total;
  }
  return counts;
}

}  // namespace rapt::lab
