#include "service/config.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::service {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::testing::HasSubstr;

absl::StatusOr<Config> Parse(std::vector<std::string> args,
                             const std::string& file = "") {
  return ParseConfig(
      args, [&](const std::string& path) -> absl::StatusOr<std::string> {
        if (path == "o.conf") return file;
        return absl::NotFoundError(path);
      });
}

constexpr auto kBad = absl::StatusCode::kInvalidArgument;

TEST(ConfigTest, DefaultsAreSafe) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Config config,
                                Parse({"--model=m.gguf", "--data_dir=d"}));
  EXPECT_EQ(config.model, "m.gguf");
  EXPECT_THAT(config.listen, ::testing::ElementsAre("127.0.0.1:50051"));
  EXPECT_TRUE(config.rocksdb);
  EXPECT_EQ(config.max_queued, 64);
  EXPECT_EQ(config.max_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(config.handle_ttl, absl::Minutes(10));
  EXPECT_EQ(config.grace, absl::Seconds(10));
  EXPECT_TRUE(config.selector.has_dense());
  EXPECT_EQ(config.device, engine::DeviceChoice::kAuto);
  EXPECT_EQ(config.dtype, engine::ComputeDType::kAuto);
  EXPECT_EQ(config.linears, engine::LinearPrecision::kBF16);
  EXPECT_EQ(config.attention, engine::AttentionPrecision::kBF16);
}

TEST(ConfigTest, FlagsWinOverTheFile) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const Config config,
      Parse({"--config=o.conf", "--max-queued=5", "--listen=unix:/tmp/s"},
            "# a comment\nmodel = m.gguf\n data_dir=d # here\nmax_queued = 7\n"
            "threads = 3\n\nmax_store_bytes = 2GiB\n"
            "max_memory_bytes = 3GiB\n"));
  EXPECT_EQ(config.max_queued, 5);
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.data_dir, "d");
  EXPECT_EQ(config.max_store_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.max_memory_bytes, int64_t{3} << 30);
  EXPECT_THAT(config.listen, ::testing::ElementsAre("unix:/tmp/s"));
}

TEST(ConfigTest, MistakesNameTheOptionAndThePlace) {
  EXPECT_THAT(Parse({"--model=m", "--data_dir=d", "--colour=red"}),
              StatusIs(kBad, HasSubstr("flag: unknown option 'colour'")));
  EXPECT_THAT(Parse({"--model=m", "--data_dir=d", "--threads=many"}),
              StatusIs(kBad, HasSubstr("flag: threads: 'many' must be a whole "
                                       "number in [0, 1024]")));
  EXPECT_THAT(Parse({"--config=o.conf"}, "model = m\n\nnope = 1\n"),
              StatusIs(kBad, HasSubstr("o.conf:3: unknown option 'nope'")));
  EXPECT_THAT(Parse({"--config=o.conf"}, "model\n"),
              StatusIs(kBad, HasSubstr("o.conf:1: 'model' is not")));
  EXPECT_THAT(Parse({"--config=o.conf"}, "threads = 1\nthreads = 2\n"),
              StatusIs(kBad, HasSubstr("o.conf:2: threads was set in line 1")));
  EXPECT_THAT(Parse({"--config=o.conf", "--threads=1"}, "threads = x\n"),
              StatusIs(kBad, HasSubstr("o.conf:1: threads")))
      << "a shadowed value is checked too";
  EXPECT_THAT(Parse({"--config=absent"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
  EXPECT_THAT(Parse({"--threads"}), StatusIs(kBad, HasSubstr("'--threads'")));
  EXPECT_THAT(Parse({"model.gguf"}), StatusIs(kBad, HasSubstr("'model.gguf'")));
  EXPECT_THAT(Parse({"--threads=1", "--threads=2"}),
              StatusIs(kBad, HasSubstr("twice")));
  EXPECT_THAT(Parse({"--store=tape"}),
              StatusIs(kBad, HasSubstr("rocksdb or memory")));
  EXPECT_THAT(Parse({"--handle_ttl=2days"}),
              StatusIs(kBad, HasSubstr("handle_ttl")));
  EXPECT_THAT(Parse({"--max_view_bytes=auto"}),
              StatusIs(kBad, HasSubstr("max_view_bytes")));
  EXPECT_THAT(Parse({"--listen=50051"}), StatusIs(kBad, HasSubstr("listen")));
}

TEST(ConfigTest, WhatHasNoDefaultIsRequired) {
  EXPECT_THAT(Parse({"--data_dir=d"}), StatusIs(kBad, HasSubstr("model")));
  EXPECT_THAT(Parse({"--model=m"}), StatusIs(kBad, HasSubstr("data_dir")));
  OVERTURE_EXPECT_OK(Parse({"--model=m", "--store=memory"}).status());
}

TEST(ConfigTest, ADefaultOfSizesPerHeadNeedsTheirFile) {
  const std::string flag = "--selector=vertical_slash:per_head";
  EXPECT_THAT(Parse({"--model=m", "--store=memory", flag}),
              StatusIs(kBad, HasSubstr("needs minference_config")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Config config,
                                Parse({"--model=m", "--store=memory", flag,
                                       "--minference-config=p.json"}));
  EXPECT_EQ(config.minference_config, "p.json");
  EXPECT_TRUE(config.selector.vertical_slash().per_head());
}

TEST(ConfigTest, OtherMachinesNeedConsent) {
  for (const char* address :
       {"0.0.0.0:1", "[::]:1", "192.168.0.7:1", "example.org:1",
        "127.0.0.1:1,0.0.0.0:1", "127.evil.org:1", "1270.0.0.1:1"}) {
    const std::string listen = std::string("--listen=") + address;
    EXPECT_THAT(Parse({"--model=m", "--store=memory", listen}),
                StatusIs(kBad, HasSubstr("TLS")))
        << address;
    OVERTURE_EXPECT_OK(Parse({"--model=m", "--store=memory", listen,
                              "--allow-insecure-remote"})
                           .status());
  }
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:9", "[::1]:9",
                              "localhost:9", "unix:/run/o.sock"}) {
    EXPECT_TRUE(IsLocalAddress(address)) << address;
  }
}

TEST(ConfigTest, HelpIsOneScreenAndNamesEveryOption) {
  const std::vector<std::string> lines = absl::StrSplit(HelpText(), '\n');
  EXPECT_LE(lines.size(), 50u);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << line;
  for (const char* name :
       {"model", "listen", "store", "max_store_bytes", "handle_ttl", "selector",
        "minference_config", "device", "dtype", "linears", "attention",
        "grace"}) {
    EXPECT_THAT(HelpText(), HasSubstr(std::string(" ") + name + "="));
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Config config, Parse({"--help"}));
  EXPECT_TRUE(config.help);
}

TEST(ConfigTest, TheStoreLimitIsNeverUnlimited) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(*ChooseMaxStoreBytes(0, 100 * kGiB), 20 * kGiB);
  EXPECT_EQ(*ChooseMaxStoreBytes(0, 10 * kGiB), 5 * kGiB);
  EXPECT_EQ(*ChooseMaxStoreBytes(7 * kGiB, -1), 7 * kGiB);
  EXPECT_THAT(
      ChooseMaxStoreBytes(0, -1),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unknown")));
  EXPECT_THAT(ChooseMaxStoreBytes(0, 1000),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("half of its own and the free space")));
}

TEST(ConfigTest, WhatTheStoreHoldsCountsAsItsRoom) {
  TempDir dir;
  const int64_t before = RoomForStore(dir.Join("."));
  ASSERT_GT(before, 0);
  std::filesystem::create_directory(dir.Join("kv"));
  std::ofstream(dir.Join("kv/1.blob")) << "x";
  // Sparse: takes no space. Other programs may change what is free meanwhile,
  // by far less than half of it.
  constexpr int64_t kTiB = int64_t{1} << 40;
  std::filesystem::resize_file(dir.Join("kv/1.blob"), kTiB);
  EXPECT_GT(RoomForStore(dir.Join(".")) - before, kTiB / 2);
  EXPECT_LT(RoomForStore(dir.Join("none")), 0);
}

TEST(ConfigTest, ByteSizesHaveUnits) {
  EXPECT_EQ(*ParseBytes("123"), 123);
  EXPECT_EQ(*ParseBytes("64KiB"), 64 << 10);
  EXPECT_EQ(*ParseBytes("2TiB"), int64_t{2} << 40);
  for (const char* bad : {"", "0", "-1", "1GB", "1.5GiB", "GiB", "99999TiB"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(ConfigTest, ADefaultSelectorOutsideItsLimitsIsRefused) {
  const auto parse = [](const std::string& selector) {
    return Parse({"--model=m", "--store=memory", "--selector=" + selector});
  };
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Config config,
                                parse("vertical_slash:500,800"));
  EXPECT_EQ(config.selector.vertical_slash().slash(), 800);
  for (const char* bad : {"sparse", "dense:1,2", "a_shape:1,0",
                          "vertical_slash:mass=2", "oracle:0"}) {
    EXPECT_THAT(parse(bad), StatusIs(kBad, HasSubstr("selector"))) << bad;
  }
}

}  // namespace
}  // namespace overture::service
