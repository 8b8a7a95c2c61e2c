#include "clients/demo/document.h"

#include <string>

#include "gtest/gtest.h"

namespace overture::clients {
namespace {

TEST(DocumentTest, ACutFallsOnAParagraphOnlyIfOneEndsNear) {
  const std::string near = std::string(90, 'a') + "\n\n" + std::string(8, 'b');
  EXPECT_EQ(CutAtParagraph(near), std::string(90, 'a'));
  const std::string far = std::string(10, 'a') + "\n\n" + std::string(88, 'b');
  EXPECT_EQ(CutAtParagraph(far), far);
  EXPECT_EQ(CutAtParagraph("one"), "one");
}

}  // namespace
}  // namespace overture::clients
