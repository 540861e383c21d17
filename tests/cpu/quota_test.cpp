// Tests CPU quotas of control groups, which are read from folders that the tests create, and RAPT_THREADS.
#include "cpu/quota.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "cpu/threads.h"
#include "jit_support.h"
#include "runtime/context.h"

namespace rapt::test {
namespace {

class Quota : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder / path).parent_path());
    write_file(folder / path, text);
  }
  double quota() const { return cpu::quota_cpus(folder.path()); }

  const std::string v2_mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  const std::string v1_mount =
      "25 24 0:22 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
      "33 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 shared:10 - cgroup cgroup rw,cpu,cpuacct\n";
  TemporaryFolder folder;
};

TEST_F(Quota, NothingReadableIsNoQuota) {
  EXPECT_EQ(quota(), cpu::no_quota);
  put("proc/self/mountinfo", "nonsense\n1 2 3\n - - - -\n");
  put("proc/self/cgroup", "0\n::\n0::\n");
  EXPECT_EQ(quota(), cpu::no_quota);
}

TEST_F(Quota, TheTightestOfTheGroupsAboveCounts) {
  put("proc/self/mountinfo", v2_mount);
  put("proc/self/cgroup", "0::/user.slice/job.scope/step\n");
  put("sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n");
  put("sys/fs/cgroup/user.slice/job.scope/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/user.slice/job.scope/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 1.5);
  put("sys/fs/cgroup/user.slice/job.scope/step/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5) << "the group itself";
  put("sys/fs/cgroup/user.slice/cpu.max", "20000 100000\n");
  EXPECT_EQ(quota(), 0.2) << "the topmost";
  put("sys/fs/cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(quota(), 0.1) << "the mount point, a container's own";
  put("sys/fs/cgroup/other/cpu.max", "1000 100000\n");
  EXPECT_EQ(quota(), 0.1) << "not of the process";
}

TEST_F(Quota, VersionOneByItsController) {
  put("proc/self/mountinfo", v1_mount);
  put("proc/self/cgroup", "11:memory:/elsewhere\n4:cpu,cpuacct:/slurm/job_7/step_0\n1:name=systemd:/x\n0::/y\n");
  put("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us", "300000\n");
  put("sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 3);
  put("sys/fs/cgroup/cpu,cpuacct/elsewhere/cpu.cfs_quota_us", "1000\n");
  put("sys/fs/cgroup/cpu,cpuacct/elsewhere/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 3);
}

// A container can see only a part of the hierarchy. Then the root of the mount is the path of the group, or a part of
// it.
TEST_F(Quota, RootsOfMountsAreRespected) {
  put("proc/self/cgroup", "0::/docker/abc/inner\n");
  put("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  put("sys/fs/cgroup/inner/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2);
  put("proc/self/mountinfo", "30 23 0:26 /docker/abc /odd\\040place ro - cgroup2 cgroup rw\n");
  put("odd place/inner/cpu.max", "100000 100000\n");
  EXPECT_EQ(quota(), 1);
  put("proc/self/mountinfo", "30 23 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  put("sys/fs/cgroup/cpu.max", "700000 100000\n");
  EXPECT_EQ(quota(), 7) << "/docker/ab is no part of /docker/abc";
  put("proc/self/cgroup", "0::/../../outside\n");
  put("proc/self/mountinfo", v2_mount);
  EXPECT_EQ(quota(), 7) << "a group outside of this namespace";
}

TEST_F(Quota, BothVersionsAtOnce) {
  put("proc/self/mountinfo", v1_mount + "40 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("proc/self/cgroup", "4:cpu,cpuacct:/a\n0::/b\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "600000\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 6);
  put("sys/fs/cgroup/unified/b/cpu.max", "500000 100000\n");
  EXPECT_EQ(quota(), 5);
}

TEST_F(Quota, WrongNumbersAreNone) {
  put("proc/self/mountinfo", v2_mount);
  put("proc/self/cgroup", "0::/\n");
  for (const char* text : {"", "max\n", "100000\n", "-1 100000\n", "0 100000\n", "100000 0\n", "1e5 100000\n",
                           "1 2 3\n", "99999999999999999999 100000\n"}) {
    put("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(quota(), cpu::no_quota) << text;
  }
}

class Threads : public testing::Test {
 protected:
  ~Threads() override { unsetenv("RAPT_THREADS"); }
  static void set(const char* value) { ASSERT_EQ(setenv("RAPT_THREADS", value, 1), 0); }
};

TEST_F(Threads, TheVariableLimitsEveryPool) {
  set("1");
  EXPECT_EQ(cpu::available_threads(), 1);
  Context four({.threads = 4});
  EXPECT_EQ(four.cpu().pool.size(), 1);
  set("3");
  Context more({.threads = 4});
  EXPECT_EQ(more.cpu().pool.size(), 3);
  set("65536");
  EXPECT_LT(cpu::available_threads(), 65536) << "a limit, not a wish";
}

TEST_F(Threads, ABadValueIsToldAndIgnored) {
  for (const char* value : {"0", "-1", "two", "1,5", "2 ", "+2", "0x2", "65537", "99999999999"}) {
    set(value);
    testing::internal::CaptureStderr();
    EXPECT_EQ(cpu::thread_limit(), cpu::max_threads) << value;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(contains(said, concat("RAPT_THREADS = '", value, "': must be a whole number from 1 to 65536"))) << said;
  }
}

}  // namespace
}  // namespace rapt::test
