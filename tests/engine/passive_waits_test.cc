#include "engine/passive_waits.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "gtest/gtest.h"

namespace overture::engine {
namespace {

constexpr char kIsChild[] = "OVERTURE_PASSIVE_WAITS_CHILD";

// What the test below executes itself as.
TEST(PassiveWaitsChild, SeesThePolicy) {
  if (std::getenv(kIsChild) == nullptr) {
    GTEST_SKIP() << "runs only inside of ExecutesItselfOnce";
  }
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  const bool is_set = policy != nullptr && std::strcmp(policy, "passive") == 0;
  WaitPassively(nullptr);  // returns, as the policy is set
  _exit(is_set ? 7 : 1);
}

void ExecuteAsChild() {
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("GOMP_SPINCOUNT");
  setenv(kIsChild, "1", 1);
  char name[] = "child";
  char filter[] = "--gtest_filter=PassiveWaitsChild.*";
  char* argv[] = {name, filter, nullptr};
  WaitPassively(argv);
}

TEST(PassiveWaitsTest, ExecutesItselfOnce) {
  EXPECT_EXIT(ExecuteAsChild(), ::testing::ExitedWithCode(7), "");
}

TEST(PassiveWaitsTest, LeavesASetPolicyAlone) {
  setenv("OMP_WAIT_POLICY", "active", 1);
  WaitPassively(nullptr);
  EXPECT_STREQ(std::getenv("OMP_WAIT_POLICY"), "active");
}

}  // namespace
}  // namespace overture::engine
