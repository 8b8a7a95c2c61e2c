#!/usr/bin/env bash
# tools/bundle.sh BUILD_FOLDER TARGET: a folder that runs on a machine without
# our packages, and the same as TARGET.tar.gz. bin/ holds the programs,
# tests/gpu/ and tests/e2e/ the tests of these labels, tests/data/ the model that
# some of them read, lib/ every shared library they need except glibc's, which
# must be at least as new as here, and the NVIDIA driver's.
#
# Each file finds lib/ by its own RPATH, which depends on its depth. Not RUNPATH, which a program's
# libraries would not inherit for the libraries that they need in turn.
set -euo pipefail

build=$1
target=$2

# glibc's own, and what only the driver may bring.
readonly HOST_LIBRARIES='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|cuda))\.so'

rm -rf "$target"
mkdir -p "$target"/{bin,tests/gpu,tests/e2e,lib}
cp "$build"/bin/* "$target/bin/"

# The tests of a label, by their names in ctest. None of gpu without nvcc.
for label in gpu e2e; do
  tests=$(ctest --test-dir "$build" -L "^$label\$" -N |
    sed -n 's/^ *Test *#[0-9]*: //p')
  for name in $tests; do
    cp "$build/tests/$name" "$target/tests/$label/"
  done
done

mapfile -t programs < <(find "$target"/{bin,tests} -type f)

readonly MODEL=tests/data/retrieval_model/diffuse
mkdir -p "$target/$MODEL"
cp "$MODEL"/* "$target/$MODEL/"

# ldd lists what is needed in turn, too.
ldd "${programs[@]}" | sed -n 's/^\t\(\S*\) => \(\/\S*\) .*/\1 \2/p' | sort -u |
  while read -r name path; do
    [[ $name =~ $HOST_LIBRARIES ]] || cp -L "$path" "$target/lib/$name"
  done
if ldd "${programs[@]}" | grep 'not found'; then
  echo 'bundle: libraries are missing' >&2
  exit 1
fi

chmod u+w "$target"/lib/*
strip --strip-unneeded "${programs[@]}" "$target"/lib/*
for file in "${programs[@]}"; do
  up=..
  [[ $file == "$target"/tests/* ]] && up=../..
  patchelf --force-rpath --set-rpath "\$ORIGIN/$up/lib" "$file"
done
for file in "$target"/lib/*; do
  patchelf --force-rpath --set-rpath '$ORIGIN' "$file"
done

cat >"$target/run_gpu_tests.sh" <<'SCRIPT'
#!/usr/bin/env bash
# run_gpu_tests.sh [--model=PATH] [GTEST_FLAGS...]: runs each GPU test of this
# folder, then the end-to-end tests with the server on the GPU, on a tiny random
# model and, if one is given, on that model (.gguf file or Hugging Face folder;
# head dim 64, 96 or 128). Ends with 'N passed, N failed'.
model=
if [[ ${1:-} == --model=* ]]; then
  model=$(realpath "${1#--model=}") || exit 2
  shift
fi
cd "$(dirname "$0")"
passed=0 failed=0

# run_folder FOLDER GTEST_FLAGS...
run_folder() {
  local folder=$1 test status
  shift
  for test in "$folder"/*; do
    [[ -x $test ]] || continue
    echo "==> $test ${OVERTURE_TEST_MODEL:-}"
    status=0
    "$test" "$@" || status=$?
    if ((status == 0)); then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      echo "FAILED: $test (exit status $status)"
    fi
  done
}

run_folder tests/gpu "$@"
((passed + failed > 0)) || { echo 'no GPU tests in this bundle'; failed=1; }
export OVERTURE_BIN_DIR=$PWD/bin OVERTURE_TEST_DEVICE=cuda
unset OVERTURE_TEST_MODEL
run_folder tests/e2e "$@"
if [[ -n $model ]]; then
  export OVERTURE_TEST_MODEL=$model
  run_folder tests/e2e "$@"
fi
echo "$passed passed, $failed failed"
((failed == 0))
SCRIPT
chmod +x "$target/run_gpu_tests.sh"

# Most of it is oneDNN's 40 MB, which shrink to a quarter for the journey.
tar -C "$(dirname "$target")" -czf "$target.tar.gz" "$(basename "$target")"
du -sh "$target" "$target.tar.gz"
echo "$(find "$target/bin" -type f | wc -l) programs," \
  "$(find "$target/tests/gpu" -type f | wc -l) GPU tests," \
  "$(find "$target/tests/e2e" -type f | wc -l) end-to-end tests," \
  "$(find "$target/lib" -type f | wc -l) libraries"
