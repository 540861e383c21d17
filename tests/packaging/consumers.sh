#!/usr/bin/env bash
# Builds and runs tests/consumer in every way to use rapt: consumers.sh BUILD_TREE [SOURCE_TREE]. Called by .ci/run.
# First rapt is installed into a new prefix, for find_package and pkg-config. FetchContent builds the source tree
# itself, in SOURCE_TREE if given. It builds without Highway, so CI compiles the library without Highway only once. Each
# way (shared and static, from C and from C++) must print the right number.
set -euo pipefail
cd "$(dirname "$0")/../.."
tree=$1
work=$(mktemp -d)
source_tree=${2:-$work/source}
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
consumer=tests/consumer
ran=0

run() {  # run LABEL PROGRAM
  echo "$1: $("$2")"
  ran=$((ran + 1))
}

cmake --install "$tree" --prefix "$prefix" >/dev/null
# The package is moved after installing, because it must not contain the install path.
mv "$prefix" "$work/moved"
prefix=$work/moved
"$prefix/bin/rapt" info >/dev/null
# The program must have its case sets and pages embedded.
(cd "$work" && "$prefix/bin/rapt" check --cases smoke --fill constant --device cpu >/dev/null &&
  "$prefix/bin/rapt" help problem-line | cmp - "$OLDPWD/docs/problem-line.md")

with_cmake() {  # with_cmake LABEL BUILD_FOLDER OPTIONS...
  local label=$1 folder=$2
  shift 2
  cmake -S $consumer -B "$folder" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release "$@" >/dev/null
  cmake --build "$folder" -j 2 >"$folder/log" || { cat "$folder/log"; return 1; }
  local program
  for program in c_rapt cpp_rapt c_rapt_static cpp_rapt_static; do run "$label $program" "$folder/$program"; done
}
with_cmake find_package "$work/package" -DRAPT_FROM=package "-DCMAKE_PREFIX_PATH=$prefix"
# Without a build type, rapt must still be optimised, and the two wrong warnings of g++ 12 must not appear
# (RaptTargets.cmake).
with_cmake FetchContent "$source_tree" -DRAPT_FROM=source "-DRAPT_SOURCE=$PWD" -DCMAKE_BUILD_TYPE= \
  -DRAPT_HIGHWAY=OFF -DRAPT_WERROR=ON "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wno-array-bounds -Wno-restrict" \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
compiled=$(grep 'src/operations/sdpa.cpp' "$source_tree/compile_commands.json") ||
  { echo "FetchContent compiles no src/operations/sdpa.cpp"; exit 1; }
if ! grep -q -- '-O3' <<<"$compiled"; then
  echo "FetchContent without a build type compiles rapt without optimisation"
  exit 1
fi

# The project in the documentation, which uses only C: the first cmake block of docs/c.md and the README's c block,
# shared and static.
first_block() { awk -v want="\`\`\`$1" '$0 == want {on = 1; next} on && /^```/ {exit} on' "$2"; }
mkdir "$work/readme"
first_block cmake docs/c.md >"$work/readme/CMakeLists.txt"
first_block c README.md >"$work/readme/main.c"
for library in rapt rapt_static; do
  sed -i "s/rapt::rapt[a-z_]*)/rapt::$library)/" "$work/readme/CMakeLists.txt"
  cmake -S "$work/readme" -B "$work/readme/$library" -G Ninja --log-level=WARNING "-DCMAKE_PREFIX_PATH=$prefix" >/dev/null
  cmake --build "$work/readme/$library" >"$work/readme/log" || { cat "$work/readme/log"; exit 1; }
  [ "$("$work/readme/$library/app")" = 2.5 ] || { echo "README's C example with $library prints a wrong result"; exit 1; }
  run "README, C alone, $library" "$work/readme/$library/app"
done

pc_folder=$(dirname "$(find "$prefix" -name rapt.pc)")
export PKG_CONFIG_PATH=$pc_folder
library=$(pkg-config --variable=libdir rapt)
read -ra cflags <<<"$(pkg-config --cflags rapt)"
read -ra shared <<<"$(pkg-config --libs rapt)"
# All of `pkg-config --static --libs` except -lrapt itself, which would find the shared library first.
read -ra private <<<"$(pkg-config --static --libs rapt | sed 's/-lrapt\b//')"
for language in c cpp; do
  compiler=(c++ -std=c++20)
  [ $language = c ] && compiler=(cc -std=c99)
  "${compiler[@]}" "${cflags[@]}" $consumer/main.$language -o "$work/$language" "${shared[@]}" -lm
  "${compiler[@]}" "${cflags[@]}" -DRAPT_STATIC $consumer/main.$language -o "$work/${language}_static" \
    "$library/librapt.a" "${private[@]}"
  LD_LIBRARY_PATH=$library run "pkg-config $language shared" "$work/$language"
  run "pkg-config $language static" "$work/${language}_static"
done
echo "$ran consumers ran"
