// Tests launch and load features of sm_90: clusters, tensor maps, cooperative grids. Each has one kernel in
// launch_facilities.cuh. The kernels are compiled if there is NVRTC, and run on sm_90 and newer.
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.h"
#include "cuda/tensor_map.h"
#include "gpu_support.h"
#include "jit/jit.h"
#include "launch_facilities_args.cuh"

namespace rapt::test {

const std::map<std::string_view, std::string_view>& device_sources();  // the files of this folder

namespace {

static_assert(sizeof(FacilitiesArgs::map) == sizeof(cuda::TensorMap) &&
              alignof(FacilitiesArgs) == alignof(cuda::TensorMap));

jit::Request request(const std::string& call, const std::string& arch) {
  jit::Request request{
      .unit = concat("#include \"launch_facilities.cuh\"\nextern \"C\" __global__ void rapt_kernel(",
                     "const __grid_constant__ rapt::test::FacilitiesArgs args) { rapt::test::", call, "(args); }\n"),
      .arch = arch,
      .label = "the test of " + call,
      .files = {}};
  for (const auto& [name, text] : device_sources()) request.files.emplace(name, text);
  return request;
}

class GpuLaunchFacilities : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    if (const Device& gpu = cuda::device(0); gpu.sm < 90) skip(concat(gpu.name, " is older than sm_90"));
  }

  static void launch(const std::string& call, cuda::Kernel::Launch launch, const FacilitiesArgs& args) {
    static jit::Store store(jit::Store::from_environment());
    const auto image = store.get(request(call, cuda::device(0).arch));
    cuda::Kernel kernel(image->bytes.data(), image->bytes.size(), "rapt_kernel");
    kernel.prepare(0, launch.smem_bytes);
    const cuda::Stream stream;
    launch.stream = stream.handle();
    kernel.launch(launch, &args);
    stream.synchronize();
  }
};

// A tensor of 16-bit numbers inside a larger GPU buffer. The padding holds values that no copy may contain.
struct Matrix {
  static constexpr int columns = 40, rows = 20, pitch = 48;
  static constexpr unsigned short code(int row, int column) {
    const bool inside = row >= 0 && row < rows && column >= 0 && column < columns;
    return inside ? static_cast<unsigned short>(row * 256 + column + 1) : static_cast<unsigned short>(0);
  }
  cuda::Buffer memory{pitch * rows * 2};

  Matrix() {
    std::vector<unsigned short> all(pitch * rows, 0xeeee);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) all[static_cast<size_t>(r * pitch + c)] = code(r, c);
    memory.upload(all.data(), memory.bytes());
  }
};

constexpr int box_columns = 32, box_rows = 8;

TensorMapSpec spec_of(const Matrix& matrix, TensorSwizzle swizzle) {
  TensorMapSpec spec;
  spec.element = TensorElement::bf16;
  spec.base = matrix.memory.data();
  spec.rank = 2;
  spec.sizes = {Matrix::columns, Matrix::rows};
  spec.strides = {Matrix::pitch * 2};
  spec.box = {box_columns, box_rows};
  spec.swizzle = swizzle;
  return spec;
}

// The position of element (row, column) of a box. In spans of 64 bytes, two of which make a 128-byte line, the 16-byte
// pieces of a row are permuted by the number of the line.
size_t place(int row, int column, TensorSwizzle swizzle) {
  const int piece = column / 8 ^ (swizzle == TensorSwizzle::bytes_64 ? row / 2 % 4 : 0);
  return static_cast<size_t>(row * box_columns + piece * 8 + column % 8);
}

}  // namespace

// Needs NVRTC, but no GPU.
TEST(LaunchFacilitiesSource, Compiles) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << why;
  for (const char* call : {"read_neighbour", "load_box<32, 8>", "meet_in_grid"})
    EXPECT_NO_THROW(jit::compile(request(call, "sm_90a"))) << call;
}

TEST_F(GpuLaunchFacilities, ClustersShareTheirMemory) {
  constexpr unsigned threads = 64, grid = 24;
  for (const unsigned blocks : {1u, 2u, 4u, 8u}) {
    cuda::Buffer out(grid * threads * sizeof(unsigned));
    out.fill(0xff);
    FacilitiesArgs args{};
    args.out = out.data();
    launch("read_neighbour", {.grid_x = grid, .threads = threads, .cluster_x = blocks}, args);
    std::vector<unsigned> got(grid * threads);
    out.download(got.data(), out.bytes());
    int64_t wrong = 0;
    for (unsigned i = 0; i < got.size(); ++i) {
      const unsigned block = i / threads, neighbour = block / blocks * blocks + (block + 1) % blocks;
      if (got[i] != 1000 * neighbour + i % threads && wrong++ == 0)
        ADD_FAILURE() << "clusters of " << blocks << ", block " << block << ", thread " << i % threads << ": "
                      << got[i];
    }
    EXPECT_EQ(wrong, 0) << "clusters of " << blocks;
  }
}

TEST_F(GpuLaunchFacilities, TensorMapsLoadBoxesAndFillWithZeros) {
  const Matrix matrix;
  struct Corner {
    int x, y;
  };
  for (const auto swizzle : {TensorSwizzle::none, TensorSwizzle::bytes_64})
    for (const Corner& at : {Corner{0, 0}, {8, 3}, {16, 16}, {-8, -2}, {32, 19}, {104, 0}, {0, -8}}) {
      SCOPED_TRACE(concat("column ", at.x, ", row ", at.y, ", swizzle ", static_cast<int>(swizzle)));
      const cuda::TensorMap map = cuda::make_tensor_map(spec_of(matrix, swizzle));
      cuda::Buffer out(box_columns * box_rows * 2);
      out.fill(0xa5);
      FacilitiesArgs args{};
      std::memcpy(args.map.bytes, map.bytes, sizeof map);
      args.out = out.data();
      args.x = at.x;
      args.y = at.y;
      launch("load_box<32, 8>", {.threads = 64}, args);
      std::vector<unsigned short> got(box_columns * box_rows);
      out.download(got.data(), out.bytes());
      int64_t wrong = 0;
      for (int r = 0; r < box_rows; ++r)
        for (int c = 0; c < box_columns; ++c)
          if (got[place(r, c, swizzle)] != Matrix::code(at.y + r, at.x + c) && wrong++ == 0)
            ADD_FAILURE() << "row " << r << ", column " << c << ": " << got[place(r, c, swizzle)];
      EXPECT_EQ(wrong, 0);
    }
}

TEST_F(GpuLaunchFacilities, CooperativeGridsMeet) {
  const unsigned blocks = 2 * static_cast<unsigned>(cuda::device(0).sm_count);
  cuda::Buffer counter(sizeof(unsigned)), out(3 * blocks * sizeof(unsigned));
  counter.fill(0);
  out.fill(0xff);
  FacilitiesArgs args{};
  args.counter = static_cast<unsigned*>(counter.data());
  args.out = out.data();
  launch("meet_in_grid", {.grid_x = blocks, .threads = 128, .cooperative = true}, args);
  std::vector<unsigned> got(3 * blocks);
  out.download(got.data(), out.bytes());
  int64_t wrong = 0;
  for (unsigned i = 0; i < got.size(); ++i) {
    const unsigned block = i % blocks, round = i / blocks, from = (block + blocks - round) % blocks;
    if (got[i] != 7 * from + 1 && wrong++ == 0)
      ADD_FAILURE() << "round " << round << ", block " << block << ": " << got[i];
  }
  EXPECT_EQ(wrong, 0);
}

// The driver refuses grids that no GPU supports; the grid does not hang.
TEST_F(GpuLaunchFacilities, CooperativeGridsThatDoNotFitAreRefused) {
  cuda::Buffer counter(sizeof(unsigned));
  counter.fill(0);
  FacilitiesArgs args{};
  args.counter = static_cast<unsigned*>(counter.data());
  const unsigned blocks = 64 * static_cast<unsigned>(cuda::device(0).sm_count);
  try {
    launch("meet_in_grid", {.grid_x = blocks, .threads = 128, .cooperative = true}, args);
    ADD_FAILURE() << "launched";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"), std::string::npos)
        << error.what();
  }
}

}  // namespace rapt::test
