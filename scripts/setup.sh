#!/usr/bin/env bash
# Puts LibTorch where the build expects it: .libtorch/{include,lib} in the checkout.
#   LIBTORCH set        -> .libtorch is a link to it; nothing is fetched
#   an NVIDIA GPU       -> the full torch package from the Python package registry
#   otherwise           -> only the CPU libraries of that package (about 440 MB)
# Safe to call again: it does nothing when .libtorch/ is whole.
set -euo pipefail
cd "$(dirname "$0")/.."
TORCH_VERSION=2.13.0
python=${PYTHON:-python3}

fail() { echo "setup: $*" >&2; exit 1; }

if [ -n "${LIBTORCH:-}" ] && [ "$(readlink -f "$LIBTORCH")" != "$(readlink -f .libtorch)" ]; then
    [ -f "$LIBTORCH/lib/libtorch_cpu.so" ] || fail "LIBTORCH=$LIBTORCH holds no lib/libtorch_cpu.so; unset it to let this script fetch LibTorch $TORCH_VERSION"
    if [ -e .libtorch ] && [ ! -L .libtorch ]; then rm -rf .libtorch; fi
    ln -sfn "$(readlink -f "$LIBTORCH")" .libtorch
    exit 0
fi
if [ -f .libtorch/lib/libtorch.so ] && [ -d .libtorch/include ]; then exit 0; fi

command -v "$python" >/dev/null || fail "$python is missing; install Python 3 with pip (Debian: apt-get install python3 python3-pip)"
"$python" -m pip --version >/dev/null 2>&1 || fail "pip is missing for $python (Debian: apt-get install python3-pip)"
command -v c++ >/dev/null || command -v g++ >/dev/null || fail "a C++ compiler is missing (Debian: apt-get install g++)"

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    echo "setup: NVIDIA GPU found; installing the full torch $TORCH_VERSION package into .libtorch-python/ (several GB)"
    "$python" -m pip install --quiet --target .libtorch-python "torch==$TORCH_VERSION"
    ln -sfn .libtorch-python/torch .libtorch
    exit 0
fi

echo "setup: fetching the CPU libraries of torch $TORCH_VERSION (about 540 MB to download, 440 MB kept in .libtorch/)"
work=$(mktemp -d .libtorch-fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --no-deps --dest "$work" --only-binary :all: \
    "torch==$TORCH_VERSION" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cupti==13.0.*"
"$python" - "$work" <<'PY'
# Takes from the wheels what a CPU build links and loads, and nothing else.
import pathlib, shutil, sys, zipfile

work = pathlib.Path(sys.argv[1])
out = work / "libtorch"
(out / "lib").mkdir(parents=True)
wanted = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            base = name.rsplit("/", 1)[-1]
            if base in wanted and "/lib/" in name:
                target = out / "lib" / base
            elif name.startswith("torch/include/") and not name.endswith("/"):
                target = out / name[len("torch/"):]
            elif name.startswith("torch-") and name.endswith(("LICENSE", "NOTICE")):
                target = out / base
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with z.open(name) as src, open(target, "wb") as dst:
                shutil.copyfileobj(src, dst, 1 << 20)
missing = wanted - {p.name for p in (out / "lib").iterdir()}
if missing:
    sys.exit(f"setup: the downloaded packages lack {sorted(missing)}")
(out / "lib" / "libtorch.so").symlink_to("libtorch_cpu.so")
PY
echo "$TORCH_VERSION" > "$work/libtorch/build-version"
rm -rf .libtorch
mv "$work/libtorch" .libtorch
