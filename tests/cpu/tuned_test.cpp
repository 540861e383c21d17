// Compares the tables of tiles (kernels/*/tuned_gpu.h) with the measurements under results/ that their rows name.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/sm80/tuned_gpu.h"
#include "kernels/sm90/sm90.h"
#include "kernels/sm90/tuned_gpu.h"
#include "problem/problem.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

using nlohmann::json;

// The row of results/ with this problem, family and median; null if there is none.
json find_result(const Measured& measured, const char* family) {
  std::ifstream lines(std::string(RAPT_SOURCE_DIR "/results/") + measured.file);
  EXPECT_TRUE(lines.is_open()) << measured.file;
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line);
    if (row["problem"] == measured.problem && row["family"] == family && row["median"].is_number() &&
        std::abs(row["median"].get<double>() - measured.median_us) < 5e-4)
      return row;
  }
  return nullptr;
}

// The value of a field in the printed configuration of a result; -1 if it is missing there.
int value_in(const json& result, const std::string& field) {
  const std::string words = " " + result["config"].get<std::string>();
  const size_t at = words.find(" " + field + "=");
  return at == std::string::npos ? -1 : std::stoi(words.substr(at + field.size() + 2));
}

// `fields(tiles)` returns names and values of fields. For the row's problem, the planner must choose the row's tiles,
// and the measured kernel must have had these tiles.
template <class Row, class Fields>
void check_row(const Row& row, const Family& family, const Fields& fields) {
  SCOPED_TRACE(row.measured.problem);
  const json result = find_result(row.measured, family.name);
  ASSERT_FALSE(result.is_null()) << "no such row in " << row.measured.file;
  const Problem problem = parse_problem(row.measured.problem);
  const std::string plan = to_string(plan_by(family, problem, device_preset("h100")));
  for (const auto& [field, value] : fields(row.tiles)) {
    EXPECT_NE((plan + " ").find(concat(" ", field, "=", value, " ")), std::string::npos) << plan;
    EXPECT_EQ(value_in(result, field), value) << field << ": " << result["config"];
  }
}

}  // namespace

TEST(Tuned, RowsOfSm80HaveTheirMeasurement) {
  int measured = 0;
  for (const Sm80TunedRow& row : sm80_tuned_rows) {
    if (row.measured.problem == nullptr) continue;
    ++measured;
    check_row(row, attention_sm80, [](const Sm80Config& c) {
      return std::vector<std::pair<std::string, int>>{
          {"block_m", c.block_m}, {"block_n", c.block_n}, {"warps_m", c.warps_m}, {"stages", c.stages}};
    });
  }
  EXPECT_EQ(measured, 14);
}

TEST(Tuned, RowsOfSm90HaveTheirMeasurement) {
  int measured = 0;
  for (const Sm90TunedRow& row : sm90_tuned_rows) {
    if (row.measured.problem == nullptr) continue;
    ++measured;
    check_row(row, attention_sm90, [](const Sm90Config& c) {
      return std::vector<std::pair<std::string, int>>{{"warpgroups", c.warpgroups},
                                                      {"block_n", c.block_n},
                                                      {"q_stages", c.q_stages},
                                                      {"kv_stages", c.kv_stages},
                                                      {"ping_pong", c.ping_pong}};
    });
  }
  EXPECT_EQ(measured, 11);
}

TEST(Tuned, TilesOfSm90FitIntoSharedMemory) {
  for (const Sm90TunedRow& row : sm90_tuned_rows) {
    Sm90Config c = row.tiles;
    c.head_dim = row.most_dim, c.head_dim_v = row.most_dim_v;
    if (row.fp8_weights) c.q = c.k = c.v = DType::e4m3, c.p_terms = 1;
    EXPECT_LE(Sm90Layout(c).bytes, 227 << 10) << row.most_dim << ":" << row.most_dim_v << ", block_n = " << c.block_n;
  }
}

}  // namespace rapt::test
