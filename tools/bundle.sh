#!/usr/bin/env bash
# tools/bundle.sh BUILD_FOLDER TARGET: a folder that runs on a machine without
# our packages, and the same as TARGET.tar.gz. bin/ holds the programs, tests/ the GPU tests, lib/ every shared
# library they need except glibc's, which must be at least as new as here, and
# the NVIDIA driver's.
#
# Each file finds lib/ by its own RPATH. Not RUNPATH, which a program's
# libraries would not inherit for the libraries that they need in turn.
set -euo pipefail

build=$1
target=$2

# glibc's own, and what only the driver may bring.
readonly HOST_LIBRARIES='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|cuda))\.so'

rm -rf "$target"
mkdir -p "$target"/{bin,tests,lib}
cp "$build"/bin/* "$target/bin/"

# The tests of one label, by their names in ctest.
gpu_tests=$(ctest --test-dir "$build" -L '^gpu$' -N |
  sed -n 's/^ *Test *#[0-9]*: //p')
for name in $gpu_tests; do
  cp "$build/tests/$name" "$target/tests/"
done
rmdir --ignore-fail-on-non-empty "$target/tests"

programs=("$target"/bin/*)
[[ -d $target/tests ]] && programs+=("$target"/tests/*)

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
  patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$file"
done
for file in "$target"/lib/*; do
  patchelf --force-rpath --set-rpath '$ORIGIN' "$file"
done

cat >"$target/run_gpu_tests.sh" <<'SCRIPT'
#!/usr/bin/env bash
# Runs each GPU test of this folder; ends with 'N passed, N failed'.
cd "$(dirname "$0")"
passed=0 failed=0
for test in tests/*; do
  [[ -x $test ]] || continue
  echo "==> $test"
  status=0
  "$test" "$@" || status=$?
  if ((status == 0)); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $test (exit status $status)"
  fi
done
((passed + failed > 0)) || { echo 'no GPU tests in this bundle'; failed=1; }
echo "$passed passed, $failed failed"
((failed == 0))
SCRIPT
chmod +x "$target/run_gpu_tests.sh"

# Most of it is oneDNN's 40 MB, which shrink to a quarter for the journey.
tar -C "$(dirname "$target")" -czf "$target.tar.gz" "$(basename "$target")"
du -sh "$target" "$target.tar.gz"
echo "$(find "$target/bin" -type f | wc -l) programs," \
  "$(wc -w <<<"$gpu_tests") GPU tests," \
  "$(find "$target/lib" -type f | wc -l) libraries"
