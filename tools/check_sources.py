#!/usr/bin/env python3
"""Checks the rules of this repository that no compiler checks.

  tools/check_sources.py [ROOT]

One line per finding, `file:line: sentence`; exit status 1 if there is any.
Each rule is one function below, listed in RULES. A rule that is wrong is
changed here, in the open; no file can switch one off for itself.
"""

import fnmatch
import os
import re
import shutil
import subprocess
import sys

# The arrows of docs/design.md, section 3: who may include whom. tests/ and
# bench/ may include anything, except that only tests/ may include tests/.
ARROWS = {
    "base": {"base"},
    "proto": {"proto", "base"},
    "kernels": {"kernels", "base"},
    "compress": {"compress", "kernels", "base"},
    "cache": {"cache", "base"},
    "engine": {"engine", "compress", "kernels", "cache", "base"},
    # compress/ only for the view's types, of which engine/engine.h speaks.
    "service": {"service", "engine", "compress", "cache", "proto", "base"},
    "clients": {"clients", "proto", "base"},
}
# The clients that run a model.
MODEL_CLIENTS = ["clients/decode_worker", "clients/evaluate",
                 "clients/calibrate", "clients/model_tool"]
ARROWS |= dict.fromkeys(MODEL_CLIENTS, ARROWS["clients"] | {"engine"})
# Reads a selector as the server does.
ARROWS["clients/inspect"] = ARROWS["clients/model_tool"] | {"service"}
MODEL_CLIENTS.append("clients/inspect")

FOLDERS = ["base", "bench", "cache", "clients", "compress", "docs", "engine",
           "kernels", "proto", "service", "tests", "tools"]
OURS = set(FOLDERS)  # first component of our own includes

HEADERS = (".h", ".cuh")
KERNELS = (".cu", ".cuh")
CPP = (".h", ".cc", ".cuh", ".cu")
TEXT = CPP + (".inc", ".proto", ".py", ".sh", ".cmake", ".md", ".txt")
ROOT_FILES = ["CMakeLists.txt", "CMakePresets.json", "CONTRIBUTING.md",
              "README.md", "run"]

MAX_LINES = 600
MAX_KERNEL_LINES = 500

# Third-party headers and the folders that may see them; tests and benches may
# see all but RocksDB, which stays behind the cache's interface for them too.
THIRD_PARTY = [
    (r"rocksdb/", ["cache"], "RocksDB is seen in cache/ only"),
    (r"grpc(pp|\+\+)?/", ["service", "clients", "tests", "bench"],
     "gRPC is seen in service/ and clients/ only"),
    (r"(cuda|cublas|curand|cooperative_groups|nv/)\w*",
     ["base/cuda", "kernels", "engine", "tests", "bench"],
     "CUDA is seen in base/cuda/, kernels/ and engine/ only"),
    (r"(oneapi/|dnnl)", ["kernels", "tests", "bench"],
     "oneDNN is seen in kernels/ only"),
]

# x.cc without tests/<folder>/x_test.cc: the test that covers it, and why there.
COVERED_BY = {
    # One suite for both stores, and one for the two halves of KvCache.
    "cache/memory_store.cc": "tests/cache/store_test.cc",
    "cache/rocksdb_store.cc": "tests/cache/store_test.cc",
    "cache/kv_cache_writer.cc": "tests/cache/kv_cache_test.cc",
    # Seen through the client's calls.
    "clients/cpp/grpc_status.cc": "tests/clients/client_test.cc",
    # Programs are run as programs.
    "clients/demo/demo.cc": "tests/e2e/demo_test.cc",
    "clients/evaluate/plots.cc": "tests/clients/evaluate/summary_test.cc",
    "clients/tool/chat_command.cc": "tests/e2e/chain_test.cc",
    "clients/tool/common_flags.cc": "tests/e2e/chain_test.cc",
    "clients/tool/kv_commands.cc": "tests/e2e/chain_test.cc",
    "clients/tool/prefill_command.cc": "tests/e2e/chain_test.cc",
    "clients/tool/prefill_run.cc": "tests/e2e/chain_test.cc",
    "clients/model_tool/local_model.cc": "tests/e2e/model_tools_test.cc",
    "clients/tool/server_process.cc": "tests/e2e/chain_test.cc",
    # Reactors, over a real channel.
    "service/admin_service.cc": "tests/service/server_test.cc",
    "service/event_stream.cc": "tests/service/prefill_service_test.cc",
    "service/fetch_stream.cc": "tests/service/kv_cache_service_test.cc",
    "service/status.cc": "tests/service/context_test.cc",
    # The layer loop has no other caller than the back end.
    "engine/cpu_prefill.cc": "tests/engine/cpu_backend_test.cc",
    "engine/attention_rows.cc": "tests/engine/attention_profile_test.cc",
    "engine/cpu_row_audit.cc": "tests/engine/cpu_backend_test.cc",
    "engine/cuda_hybrid.cc": "tests/engine/cuda_backend_test.cc",
    "engine/cuda_prefill.cc": "tests/engine/cuda_backend_test.cc",
    "engine/cuda_row_audit.cc": "tests/engine/cuda_backend_test.cc",
    # Asked by the layer loop alone, one suite for both.
    "engine/cpu_selector.cc": "tests/engine/cpu_backend_test.cc",
    "engine/cuda_selector.cc": "tests/engine/cuda_backend_test.cc",
    # What the back ends share, seen through the first of them.
    "engine/backend.cc": "tests/engine/cpu_backend_test.cc",
    "engine/fused_weights.cc": "tests/engine/cpu_weights_test.cc",
    "engine/cuda_weights.cc": "tests/engine/cuda_backend_test.cc",
    # Chooses between two kernels that one suite runs.
    "kernels/sparse_attention/sparse_attention.cc":
        "tests/kernels/sparse_attention_gpu_test.cc",
    # Seen through the kernels that load by them.
    "kernels/ptx/tensor_map.cc": "tests/kernels/sparse_attention_gpu_test.cc",
    # Seen through the first implementation.
    "kernels/probe_attention/probe_params.cc":
        "tests/kernels/probe_attention_cpu_test.cc",
    "kernels/row_lse/row_lse_params.cc": "tests/kernels/row_lse_cpu_test.cc",
    # The engine and stream that every linear layer runs on.
    "kernels/onednn/onednn.cc": "tests/kernels/linear_cpu_test.cc",
}


class File:
  def __init__(self, root, path):
    self.path = path
    self.folder = os.path.dirname(path)
    self.name = os.path.basename(path)
    with open(os.path.join(root, path), "rb") as file:
      self.bytes = file.read()
    self.lines = self.bytes.decode("utf-8", "replace").split("\n")

  @property
  def top(self):
    return self.path.split("/")[0]

  def under(self, folder):
    return self.path.startswith(folder + "/")


class Tree:
  def __init__(self, root):
    self.root = root
    paths = [name for name in ROOT_FILES
             if os.path.isfile(os.path.join(root, name))]
    for folder in FOLDERS + ["cmake", ".ci"]:
      for parent, folders, names in os.walk(os.path.join(root, folder)):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        paths += [os.path.relpath(os.path.join(parent, name), root)
                  for name in sorted(names)]
    self.files = [File(root, path) for path in paths
                  if path in ROOT_FILES or path.endswith(TEXT)]
    self.paths = set(paths)

  def cpp(self):
    return [f for f in self.files if f.path.endswith(CPP)]

  def cmake(self):
    return [f for f in self.files
            if f.name == "CMakeLists.txt" or f.path.endswith(".cmake")]

  def exists(self, path):
    """A path or a glob below the root."""
    if "*" in path:
      return any(fnmatch.fnmatch(p, path) for p in self.paths)
    return os.path.exists(os.path.join(self.root, path))


INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def includes(file):
  """(line number, quote, path) of each include."""
  for number, line in enumerate(file.lines, 1):
    match = INCLUDE.match(line)
    if match:
      yield number, match.group(1), match.group(2)


def allowed(file):
  """The folders that `file` may include, or None for all."""
  for folder in sorted(ARROWS, key=len, reverse=True):
    if file.under(folder):
      return ARROWS[folder]
  return None


def folder_of(include):
  """Our folder that an include leads to, or None."""
  if include.startswith("overture/v1/"):
    return "proto"
  first = include.split("/")[0]
  return first if "/" in include and first in OURS else None


# ---- Rules: each yields (path, line number, sentence) -----------------------


def folder_arrows(tree):
  for file in tree.cpp():
    may = allowed(file)
    for number, _, path in includes(file):
      to = folder_of(path)
      if may is not None and to is not None and to not in may:
        yield (file.path, number,
               f"{file.folder}/ may not include {to}/ "
               "(arrows: docs/design.md, section 3)")
      if to == "tests" and file.top != "tests":
        yield file.path, number, "only tests include tests/"
      if path.startswith("base/cuda/") and file.top in (
          "compress", "cache", "service", "clients"):
        yield file.path, number, f"{file.top}/ never sees CUDA"
      if (path.startswith("base/cuda/") and file.top == "base"
          and not file.under("base/cuda")):
        yield file.path, number, "base/ outside base/cuda/ never sees CUDA"


def link_arrows(tree):
  call = re.compile(r"\boverture_(?:library|binary)\s*\(([^)]*)\)")
  for file in tree.cmake():
    for match in call.finditer("\n".join(file.lines)):
      body = match.group(1)
      may = allowed(file)
      for folder in MODEL_CLIENTS:
        if (os.path.dirname(folder) == file.folder
            and os.path.basename(folder) + "/" in body):
          may = ARROWS[folder]
      if may is None:
        continue
      for target in re.finditer(r"overture::(\w+)", body):
        to = next((f for f in FOLDERS if target.group(1) == f
                   or target.group(1).startswith(f + "_")), None)
        if to is not None and to not in may:
          offset = match.start(1) + target.start()
          number = "\n".join(file.lines)[:offset].count("\n") + 1
          yield (file.path, number,
                 f"{file.folder}/ may not link overture::{target.group(1)} "
                 "(arrows: docs/design.md, section 3)")


def third_party_headers(tree):
  for file in tree.cpp():
    for number, _, path in includes(file):
      for pattern, folders, sentence in THIRD_PARTY:
        if re.match(pattern, path) and folder_of(path) is None:
          if not any(file.under(folder) for folder in folders):
            yield file.path, number, sentence
      if path.startswith("rocksdb/") and file.path.endswith(HEADERS):
        yield (file.path, number,
               "RocksDB stays out of headers, so that its types do not leak")


def inline_ptx(tree):
  for file in tree.cpp():
    if file.under("kernels/ptx"):
      continue
    for number, line in enumerate(file.lines, 1):
      if re.search(r"\basm\b\s*(volatile|\()", line):
        yield (file.path, number,
               "inline PTX and other assembly stands in kernels/ptx/ only")


def include_form(tree):
  for file in tree.cpp():
    for number, _, path in includes(file):
      if path.startswith("../") or "/../" in path or path.startswith("./"):
        yield file.path, number, "includes are written from the root"


def headers_guarded(tree):
  for file in tree.cpp():
    if file.path.endswith(HEADERS) and "#pragma once" not in file.lines:
      yield file.path, 1, "a header says #pragma once"


def no_using_namespace(tree):
  for file in tree.cpp():
    for number, line in enumerate(file.lines, 1):
      if re.match(r"\s*using\s+namespace\b", line):
        yield file.path, number, "no `using namespace`"


def ascii_only(tree):
  for file in tree.files:
    if file.bytes.isascii():
      continue
    for number, line in enumerate(file.lines, 1):
      if not line.isascii():
        bad = next(c for c in line if not c.isascii())
        yield file.path, number, f"U+{ord(bad):04X} is not ASCII"
        break


def file_sizes(tree):
  for file in tree.cpp():
    limit = MAX_KERNEL_LINES if file.path.endswith(KERNELS) else MAX_LINES
    count = len(file.lines) - 1
    if count > limit:
      yield (file.path, limit + 1,
             f"{count} lines, at most {limit}: split it by what it is about")


def no_disabled_tests(tree):
  for file in tree.files:
    if file.path.endswith(CPP):
      for number, line in enumerate(file.lines, 1):
        if re.search(r"\bDISABLED_", line):
          yield file.path, number, "a disabled test is fixed or deleted"
    if file in tree.cmake():
      for number, line in enumerate(file.lines, 1):
        # `overture_test(<name> ...` in a comment explains the function.
        if re.match(r"\s*#+\s*(add_test|overture_test|overture_fuzz|"
                    r"add_subdirectory)\s*\((?!<)", line):
          yield (file.path, number,
                 "a test in a CMake comment is fixed or deleted")


def unrolled(text):
  """CMake's `foreach(name a b) ... endforeach()` written out."""
  loop = re.compile(r"foreach\((\w+)\s([^)]*)\)(.*?)endforeach\(\)", re.DOTALL)
  return loop.sub(
      lambda m: "".join(m.group(3).replace("${%s}" % m.group(1), item)
                        for item in m.group(2).split()), text)


def sources_are_built(tree):
  """A source that no CMakeLists.txt names is a test that never runs."""
  built = set()
  for file in tree.cmake():
    text = unrolled("\n".join(line.split("#")[0] for line in file.lines))
    names = re.findall(r"[\w./-]+\.(?:cc|cu)\b", text)
    for name in re.findall(r"\boverture_fuzz\s*\((\w+)", text):
      names += [f"fuzz_{name}.cc", f"{name}_corpus_test.cc"]
    built |= {os.path.normpath(os.path.join(file.folder, n)) for n in names}
  for file in tree.files:
    if file.path.endswith((".cc", ".cu")) and file.path not in built:
      yield file.path, 1, "no CMakeLists.txt names it: it is never built"


def every_source_has_a_test(tree):
  this = "tools/check_sources.py"
  tested = {f.path for f in tree.files if f.top == "tests"}
  for file in tree.files:
    if not file.path.endswith(".cc") or file.top not in ARROWS:
      continue
    wanted = file.name[:-len(".cc")] + "_test.cc"
    found = any(p.startswith(f"tests/{file.top}/")
                and os.path.basename(p) == wanted for p in tested)
    if file.path in COVERED_BY:
      if found:
        yield (file.path, 1,
               f"has {wanted} now: strike it from COVERED_BY in {this}")
      elif COVERED_BY[file.path] not in tested:
        yield (file.path, 1, f"{COVERED_BY[file.path]}, which covers it by "
               f"COVERED_BY in {this}, does not exist")
    elif file.name != "main.cc" and not found:
      yield (file.path, 1, f"has no test tests/{file.top}/{wanted}, nor a "
             f"line in COVERED_BY in {this}")
  if this in tree.paths:
    for path in COVERED_BY:
      if path not in tree.paths:
        yield this, 1, f"COVERED_BY names {path}, which does not exist"


def braces(path):
  """x.{h,cc} as x.h and x.cc."""
  match = re.match(r"(.*)\{([^}]*)\}(.*)$", path)
  if not match:
    return [path]
  return [match.group(1) + middle + match.group(3)
          for middle in match.group(2).split(",")]


def documented_paths(tree):
  """Files that documents and comments name are there.

  `repo:path` names another project's file and is left alone.
  """
  folders = "|".join(FOLDERS)
  ends = r"(?:h|cc|cu|cuh|md|py|sh|proto|cmake|json|\{[\w,]+\})"
  plain = re.compile(r"(?<![\w./*:-])((?:%s)/[\w./*-]*\.%s)(?!\w)"
                     % (folders, ends))
  quoted = re.compile(r"`((?:%s)/[\w./*-]*)`" % folders)
  link = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
  comment = re.compile(r"\s*(//|#(?!\s*include))")
  for file in tree.files:
    document = file.path.endswith(".md")
    for number, line in enumerate(file.lines, 1):
      if not document and not comment.match(line):
        continue
      if "(planned)" in line or file.path == "tools/check_sources.py":
        continue
      named = plain.findall(line) + (quoted.findall(line) if document else [])
      for path in {p for name in named for p in braces(name)}:
        if not tree.exists(path):
          yield file.path, number, f"names {path}, which does not exist"
      for path in link.findall(line) if document else []:
        if not tree.exists(os.path.normpath(os.path.join(file.folder, path))):
          yield file.path, number, f"links {path}, which does not exist"


def clang_format(tree):
  """Version 14 only: others format differently."""
  tool = shutil.which("clang-format-14")
  if tool is None:
    print("check_sources: no clang-format-14, formatting is not checked",
          file=sys.stderr)
    return
  paths = [f.path for f in tree.cpp()]
  if not paths:
    return
  result = subprocess.run([tool, "--dry-run"] + paths, cwd=tree.root,
                          stderr=subprocess.PIPE, text=True, check=False)
  seen = set()
  for match in re.finditer(r"^(\S+?):(\d+):\d+: (?:warning|error)",
                           result.stderr, re.MULTILINE):
    if match.group(1) not in seen:
      seen.add(match.group(1))
      yield match.group(1), int(match.group(2)), "not formatted: ./run fmt"


RULES = [
    folder_arrows, link_arrows, third_party_headers, inline_ptx, include_form,
    headers_guarded, no_using_namespace, ascii_only, file_sizes,
    no_disabled_tests, sources_are_built, every_source_has_a_test,
    documented_paths, clang_format,
]


def check(root):
  """All findings as lines of text, sorted."""
  tree = Tree(root)
  findings = [(path, number, f"{path}:{number}: {text} [{rule.__name__}]")
              for rule in RULES for path, number, text in rule(tree)]
  return [line for _, _, line in sorted(findings)], len(tree.files)


def main():
  root = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
  if len(sys.argv) > 1:
    root = sys.argv[1]
  findings, count = check(os.path.normpath(root))
  for line in findings:
    print(line)
  print(f"check_sources: {count} files, {len(RULES)} rules, "
        f"{len(findings)} findings")
  return 1 if findings else 0


if __name__ == "__main__":
  sys.exit(main())
