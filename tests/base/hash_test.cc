#include "base/hash.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace overture {
namespace {

TEST(Sha256Test, MatchesThePublishedVector) {
  // FIPS 180-2, appendix B.1.
  Sha256 sha;
  sha.Update("abc");
  EXPECT_EQ(sha.Digest().Hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256Test, DigestDoesNotEndTheStreamAndCopiesDiverge) {
  Sha256 sha;
  sha.Update("ab");
  (void)sha.Digest();
  Sha256 other(sha);
  sha.Update("c");
  other.Update("d");
  Sha256 abc;
  abc.Update("abc");
  EXPECT_EQ(sha.Digest(), abc.Digest());
  EXPECT_NE(sha.Digest(), other.Digest());
}

TEST(Sha256Test, TokensAreLittleEndianU32) {
  Sha256 tokens, bytes;
  tokens.UpdateTokens(std::vector<int32_t>{1, 0x01020304});
  bytes.Update(std::string("\1\0\0\0\4\3\2\1", 8));
  EXPECT_EQ(tokens.Digest(), bytes.Digest());
}

TEST(DigestTest, HexAndBytesRoundTripAndBadInputIsRefused) {
  Sha256 sha;
  sha.Update("x");
  const Sha256Digest digest = sha.Digest();
  EXPECT_EQ(*ParseHexDigest(digest.Hex()), digest);
  EXPECT_EQ(*DigestFromBytes(digest.AsStringView()), digest);
  EXPECT_FALSE(ParseHexDigest("zz").ok());
  EXPECT_FALSE(ParseHexDigest(std::string(64, 'g')).ok());
  EXPECT_FALSE(DigestFromBytes("short").ok());
}

TEST(Xxh3Test, MatchesThePublishedEmptyVector) {
  EXPECT_EQ(Xxh3("", 0), 0x2d06800538d394c2ull);
}

}  // namespace
}  // namespace overture
