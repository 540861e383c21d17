// Provides images from memory, packs, the cache directory, or NVRTC. Only one thread fetches a key; others wait for it.
// Created by a context at its first GPU call, and by the lab. Without NVRTC the cache is not used, because its keys
// contain the compiler's version.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "jit/cache.h"
#include "jit/jit.h"
#include "jit/nvrtc.h"
#include "jit/pack.h"

namespace rapt::jit {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// The image of one key, or the error of fetching it. All waiting threads get the error, each as its own exception. Then
// the error is forgotten.
struct Slot {
  std::mutex mutex;
  std::condition_variable done;
  std::shared_ptr<const Image> image;
  std::optional<std::pair<ErrorCode, std::string>> failure;

  std::shared_ptr<const Image> wait() {
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return image || failure; });
    if (failure) throw Error(failure->first, failure->second);
    return image;
  }
  void set(std::shared_ptr<const Image> made) {
    const std::lock_guard lock(mutex);
    image = std::move(made);
    done.notify_all();
  }
  void fail(ErrorCode code, const std::string& message) {
    const std::lock_guard lock(mutex);
    failure.emplace(code, message);
    done.notify_all();
  }
};

}  // namespace

struct Store::Impl {
  explicit Impl(Options given) : options(std::move(given)) {}

  const Options options;
  std::mutex mutex;  // guards slots and packs; never held while something is read or compiled
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots;
  std::vector<std::shared_ptr<const Pack>> packs;
  std::once_flag cache_once;
  std::optional<Cache> opened_cache;
  // Counters: compilations; hits in memory, in packs, in the cache; rejected files.
  std::atomic<int64_t> compiled{0}, memory{0}, pack{0}, cache{0}, rejected{0};

  // Opens the cache at its first use, and creates the directory if it is missing. So a process that uses no GPU creates
  // no directory.
  const Cache* usable_cache() {
    std::call_once(cache_once, [&] {
      if (!options.cache_directory.empty()) opened_cache.emplace(options.cache_directory);
    });
    return opened_cache && opened_cache->usable() ? &*opened_cache : nullptr;
  }
  std::string cache_note() const {
    return options.cache_directory.empty() ? options.cache_note : Cache::why_unusable(options.cache_directory);
  }

  // `outcome`: the end of the warning, which says what the store does next.
  void reject(const std::string& why, const char* outcome) {
    ++rejected;
    warn_once(why + outcome);
  }

  Image fetch(const Request& request, const std::string& key);
  bool read_packs(const Request& request, const std::string& key, Image& image, std::string& complaints);
  Image compile_and_keep(const Request& request, const std::string& key, const Nvrtc& nvrtc);
  [[noreturn]] void missing(const Request& request, const std::string& complaints, const std::string& why);
};

bool Store::Impl::read_packs(const Request& request, const std::string& key, Image& image, std::string& complaints) {
  std::vector<std::shared_ptr<const Pack>> opened;
  {
    const std::lock_guard lock(mutex);
    opened = packs;
  }
  if (opened.empty()) return false;
  Request fitting = request;
  for (const std::string& arch : architectures_that_run_on(request.arch)) {
    fitting.arch = arch;
    const auto holds = [&](const auto& each) { return each->holds(arch); };
    const bool own = arch == request.arch;
    if (!own && std::none_of(opened.begin(), opened.end(), holds)) continue;
    const std::string signature_there = own ? key : signature(fitting);
    for (const auto& each : opened) {
      std::string why;
      if (each->read(signature_there, arch, image, why)) {
        image.source = Image::Source::pack;
        ++pack;
        return true;
      }
      if (why.empty()) continue;
      reject(why, "; that entry is not used");
      complaints += why + "; ";
    }
  }
  return false;
}

void Store::Impl::missing(const Request& request, const std::string& complaints, const std::string& why) {
  const std::lock_guard lock(mutex);
  throw Error(
      ErrorCode::environment,
      concat(packs.empty() ? "no pack is loaded for " : "no loaded pack has ", request.label, " (", request.arch,
             "): compile that line into a pack with 'rapt pack' and set RAPT_PACKS to its path. ", complaints, why));
}

// Reads the kernel from the cache, or compiles and stores it. If several processes with the same cache directory need a
// key, one compiles it and the others wait.
Image Store::Impl::compile_and_keep(const Request& request, const std::string& key, const Nvrtc& nvrtc) {
  const Compiler& compiler = nvrtc.about;
  const Cache* directory = usable_cache();
  if (!directory) {
    if (const std::string& note = opened_cache ? opened_cache->note() : options.cache_note; !note.empty())
      warn_once(note);
    return compile_with(nvrtc, request);
  }
  Image image;
  std::string wrong, failure;
  const auto hit = [&] {
    const bool found = directory->read(key, request.arch, compiler.version, image, wrong) == Cache::Found::hit;
    if (!found) return false;
    image.source = Image::Source::cache;
    ++cache;
    return true;
  };
  if (hit()) return image;
  const std::optional<Cache::KeyLock> lock = directory->lock(key, compiler.version, failure);
  wrong.clear();
  if (hit()) return image;  // another process compiled it
  if (!wrong.empty()) reject(wrong, lock ? "; recompiling and replacing it" : "; recompiling it");
  image = compile_with(nvrtc, request);
  if (lock) failure = directory->write(image, *lock);
  if (!failure.empty())
    warn_once(concat("cannot store compiled kernels in '", options.cache_directory, "': ", failure));
  return image;
}

Image Store::Impl::fetch(const Request& request, const std::string& key) {
  auto begin = std::chrono::steady_clock::now();
  Image image;
  std::string complaints, why = "This store is not allowed to compile";
  Request in_pack = request;
  in_pack.line_info = false;  // a kernel of a pack is used even though it has no source lines
  if (!read_packs(in_pack, request.line_info ? signature(in_pack) : key, image, complaints)) {
    const CompilerNeeds needs{.newest_major = options.newest_major, .arch = request.arch};
    const Nvrtc* nvrtc = options.use_compiler ? find_nvrtc(needs, &why) : nullptr;
    if (!nvrtc) missing(request, complaints, why);
    Request fitting = request;
    fitting.arch = known_architecture(nvrtc->about, request.arch);
    // The time to open NVRTC does not count for this image, because it is opened only once in a process.
    begin = std::chrono::steady_clock::now();
    image = compile_and_keep(fitting, fitting.arch == request.arch ? key : signature(fitting), *nvrtc);
    if (image.source == Image::Source::compiled) {
      ++compiled;
      log_info(concat("compiled ", request.label, " for ", fitting.arch, " in ", image.milliseconds, " ms"));
      return image;
    }
  }
  image.milliseconds = milliseconds_since(begin);
  return image;
}

Store::Store(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  for (const std::string& path : impl_->options.packs) load_pack(path);
}

Store::~Store() = default;

std::shared_ptr<const Image> Store::get(const Request& request) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string key = signature(request);
  std::unique_lock lock(impl_->mutex);
  if (const auto found = impl_->slots.find(key); found != impl_->slots.end()) {
    const std::shared_ptr<Slot> slot = found->second;
    lock.unlock();
    auto image = std::make_shared<Image>(*slot->wait());
    image->source = Image::Source::memory;
    image->milliseconds = milliseconds_since(begin);
    ++impl_->memory;
    return image;
  }
  const auto slot = std::make_shared<Slot>();
  impl_->slots.emplace(key, slot);
  lock.unlock();

  const auto forget = [&](ErrorCode code, const std::string& message) {
    {
      const std::lock_guard relock(impl_->mutex);
      impl_->slots.erase(key);
    }
    slot->fail(code, message);
  };
  try {
    auto image = std::make_shared<const Image>(impl_->fetch(request, key));
    slot->set(image);
    return image;
  } catch (const Error& error) {
    forget(error.code(), error.what());
    throw;
  } catch (const std::bad_alloc&) {
    forget(ErrorCode::out_of_memory, "not enough memory for a compiled kernel");
    throw;
  } catch (const std::exception& error) {
    forget(ErrorCode::internal, error.what());
    throw;
  }
}

void Store::load_pack(const std::string& path) {
  std::shared_ptr<const Pack> pack = Pack::open(path, impl_->options.trust_any_pack);
  const std::lock_guard lock(impl_->mutex);
  impl_->packs.push_back(std::move(pack));
}

Store::Counters Store::counters() const {
  return {impl_->compiled, impl_->memory, impl_->pack, impl_->cache, impl_->rejected};
}

const std::string& Store::cache_directory() const {
  static const std::string none;
  return impl_->cache_note().empty() ? impl_->options.cache_directory : none;
}

std::string Store::cache_note() const { return impl_->cache_note(); }

}  // namespace rapt::jit
