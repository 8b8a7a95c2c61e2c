"""A bad sample for each rule of tools/check_sources.py must be caught, and a
good tree must pass."""

import os
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_sources  # noqa: E402

GOOD = {
    "base/CMakeLists.txt": "overture_library(base SOURCES a.cc DEPS absl::x)\n",
    "base/a.h": "// What it is.\n#pragma once\n\nint A();\n",
    "base/a.cc": '#include "base/a.h"\n\nint A() { return 1; }\n',
    "tests/base/CMakeLists.txt":
        "overture_test(base_a_test LABEL cpu SOURCES a_test.cc)\n",
    "tests/base/a_test.cc": '#include "base/a.h"\n',
    "docs/design.md": "See base/a.h and `base/`.\n",
}


class CheckSourcesTest(unittest.TestCase):

  def findings(self, files):
    """(rule, path, line) of each finding in GOOD with `files` laid over it."""
    with tempfile.TemporaryDirectory() as root:
      for path, text in {**GOOD, **files}.items():
        path = os.path.join(root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
          file.write(text)
      lines, _ = check_sources.check(root)
    found = set()
    for line in lines:
      path, number, rest = line.split(":", 2)
      found.add((rest.rsplit("[", 1)[1][:-1], path, int(number)))
    return found

  def expect(self, rule, path, number, files):
    self.assertIn((rule, path, number), self.findings(files))

  def test_a_good_tree_has_no_findings(self):
    self.assertEqual(self.findings({}), set())

  def test_an_include_against_an_arrow(self):
    self.expect("folder_arrows", "base/b.h", 2,
                {"base/b.h": '#pragma once\n#include "kernels/c.h"\n'})
    self.expect("folder_arrows", "clients/cpp/b.h", 2,
                {"clients/cpp/b.h": '#pragma once\n#include "engine/c.h"\n'})

  def test_the_decode_worker_alone_may_include_the_engine(self):
    files = {"clients/decode_worker/b.h":
             '#pragma once\n\n#include "engine/c.h"\n'}
    self.assertEqual(self.findings(files), set())

  def test_product_code_that_includes_tests(self):
    self.expect("folder_arrows", "bench/b.h", 2,
                {"bench/b.h": '#pragma once\n#include "tests/support/c.h"\n'})

  def test_cuda_wrappers_where_cuda_is_not_seen(self):
    self.expect("folder_arrows", "cache/b.h", 2,
                {"cache/b.h": '#pragma once\n#include "base/cuda/c.h"\n'})
    self.expect("folder_arrows", "base/b.h", 2,
                {"base/b.h": '#pragma once\n#include "base/cuda/c.h"\n'})

  def test_a_link_against_an_arrow(self):
    self.expect("link_arrows", "cache/CMakeLists.txt", 3, {
        "cache/CMakeLists.txt":
            "overture_library(cache\n  SOURCES\n  DEPS overture::engine)\n"})

  def test_third_party_headers_out_of_place(self):
    for path, include in [("engine/b.h", "rocksdb/db.h"),
                          ("cache/b.h", "rocksdb/db.h"),
                          ("engine/b.h", "grpcpp/grpcpp.h"),
                          ("cache/b.h", "cuda_runtime.h"),
                          ("service/b.h", "oneapi/dnnl/dnnl.hpp")]:
      with self.subTest(path=path, include=include):
        self.expect("third_party_headers", path, 2,
                    {path: f"#pragma once\n#include <{include}>\n"})

  def test_assembly_outside_its_folder(self):
    text = '#pragma once\nvoid F() { asm volatile("bar;"); }\n'
    self.expect("inline_ptx", "kernels/b.cuh", 2, {"kernels/b.cuh": text})
    self.assertNotIn(
        "inline_ptx",
        {rule for rule, _, _ in self.findings({"kernels/ptx/b.cuh": text})})

  def test_an_include_that_climbs(self):
    self.expect("include_form", "base/b.h", 2,
                {"base/b.h": '#pragma once\n#include "../base/a.h"\n'})

  def test_a_header_without_guard(self):
    self.expect("headers_guarded", "base/b.h", 1, {"base/b.h": "int B();\n"})

  def test_using_namespace(self):
    self.expect("no_using_namespace", "base/b.h", 2,
                {"base/b.h": "#pragma once\nusing namespace std;\n"})

  def test_a_letter_beyond_ascii(self):
    self.expect("ascii_only", "base/b.h", 2,
                {"base/b.h": "#pragma once\n// 3 \u00b5s\n"})

  def test_a_file_that_is_too_long(self):
    self.expect("file_sizes", "base/b.h", 601,
                {"base/b.h": "#pragma once\n" * 601})
    self.expect("file_sizes", "kernels/b.cuh", 501,
                {"kernels/b.cuh": "#pragma once\n" * 501})

  def test_disabled_tests(self):
    self.expect("no_disabled_tests", "tests/base/a_test.cc", 1,
                {"tests/base/a_test.cc": "TEST(A, DISABLED_B) {}\n"})
    self.expect("no_disabled_tests", "tests/base/CMakeLists.txt", 2,
                {"tests/base/CMakeLists.txt":
                 "overture_test(base_a_test SOURCES a_test.cc)\n"
                 "# overture_test(base_b_test SOURCES b_test.cc)\n"})

  def test_a_test_that_is_never_built(self):
    self.expect("sources_are_built", "tests/base/b_test.cc", 1,
                {"tests/base/b_test.cc": ""})

  def test_a_source_without_test(self):
    self.expect("every_source_has_a_test", "base/b.cc", 1,
                {"base/b.cc": "", "base/CMakeLists.txt": "a.cc b.cc\n"})

  def test_paths_that_do_not_exist(self):
    self.expect("documented_paths", "README.md", 1,
                {"README.md": "See base/gone.h.\n"})
    self.expect("documented_paths", "docs/design.md", 1,
                {"docs/design.md": "[formats](formats.md)\n"})
    self.expect("documented_paths", "base/b.h", 1,
                {"base/b.h": "// As docs/gone.md says.\n#pragma once\n"})

  def test_a_file_that_is_not_formatted(self):
    if check_sources.shutil.which("clang-format-14") is None:
      self.skipTest("needs clang-format-14")
    self.expect("clang_format", "base/b.h", 2,
                {"base/b.h": "#pragma once\nint   B();\n"})


if __name__ == "__main__":
  unittest.main()
