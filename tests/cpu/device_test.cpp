// Presets: the known properties of GPUs that this machine does not have.
#include "device/device.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "base/error.h"

namespace rapt {
namespace {

TEST(DevicePreset, facts_of_an_l4) {
  const Device l4 = device_preset("l4");
  EXPECT_EQ(l4.kind, DeviceKind::cuda);
  EXPECT_EQ(l4.name, "l4");
  EXPECT_EQ(l4.sm, 89);
  EXPECT_EQ(l4.arch, "sm_89");
  EXPECT_EQ(l4.sm_count, 58);
  EXPECT_EQ(l4.smem_per_block, 101376);
  EXPECT_EQ(l4.smem_per_sm, 102400);
  EXPECT_EQ(l4.registers_per_sm, 65536);
  EXPECT_EQ(l4.threads_per_sm, 1536);
  EXPECT_EQ(l4.l2_bytes, 48 << 20);
}

TEST(DevicePreset, facts_of_an_h100) {
  const Device h100 = device_preset("h100");
  EXPECT_EQ(h100.arch, "sm_90a");
  EXPECT_EQ(h100.sm_count, 132);
  EXPECT_EQ(h100.smem_per_block, 232448);
  EXPECT_EQ(h100.threads_per_sm, 2048);
}

TEST(DevicePreset, an_architecture_is_its_smallest_card) {
  EXPECT_EQ(device_preset("sm_86").sm_count, device_preset("a10").sm_count);
  EXPECT_EQ(device_preset("sm_89").sm_count, device_preset("l4").sm_count);
  EXPECT_EQ(device_preset("sm_80").arch, "sm_80");
  EXPECT_EQ(device_preset("sm_90a").sm, 90);
  EXPECT_EQ(device_preset("sm_120").arch, "sm_120");
  EXPECT_EQ(device_preset("sm_90").arch, "sm_90");
  EXPECT_EQ(device_preset("sm_90").sm_count, device_preset("h100").sm_count);
  for (const int sm : {87, 103, 121})
    for (const char* prefix : {"sm_", "compute_"}) {
      const Device device = device_preset(concat(prefix, sm));
      EXPECT_EQ(device.arch, concat(prefix, sm));
      EXPECT_EQ(device.sm, sm);
      EXPECT_GT(device.sm_count, 0);
    }
  const Device ptx = device_preset("compute_89");
  EXPECT_EQ(ptx.arch, "compute_89");
  EXPECT_EQ(ptx.sm, 89);
  EXPECT_EQ(ptx.sm_count, 58);
}

// Every name in the error's list is a valid and complete preset.
TEST(DevicePreset, an_unknown_name_lists_the_known_ones) {
  std::string known;
  try {
    device_preset("l5");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    known = error.what();
  }
  const std::string start = "device = l5: known presets are ";
  ASSERT_EQ(known.rfind(start, 0), 0u) << known;
  int gpus = 0;
  std::istringstream names(known.substr(start.size()));
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    const Device device = device_preset(name);
    if (device.kind != DeviceKind::cuda) continue;
    ++gpus;
    EXPECT_EQ(device.name, name);
    EXPECT_GT(device.sm_count, 0) << name;
    EXPECT_GT(device.smem_per_block, 0) << name;
    EXPECT_GT(device.threads_per_sm, 0) << name;
    const bool ptx = name.rfind("compute_", 0) == 0;
    const bool architecture = ptx || name.rfind("sm_", 0) == 0;
    EXPECT_EQ(device.arch, architecture ? name : arch_of(device.sm));
    EXPECT_EQ(arch_number(device.arch), device.sm);
  }
  EXPECT_EQ(gpus, 10 + 2 * 9 + 1);  // GPUs; nine architectures, each as cubin and as PTX; sm_90 without its a
}

TEST(DevicePreset, arch_of) {
  EXPECT_EQ(arch_of(75), "sm_75");
  EXPECT_EQ(arch_of(80), "sm_80");
  EXPECT_EQ(arch_of(90), "sm_90a");
  EXPECT_EQ(arch_of(100), "sm_100");
  EXPECT_EQ(arch_of(121), "sm_121");
}

}  // namespace
}  // namespace rapt
