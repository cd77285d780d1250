// SPDX-License-Identifier: Apache-2.0
// Tokenizers of files that are right, and of files that are not.
#include <cstdio>

#include "check.h"
#include "damage.h"
#include "nnl/tokenizer.h"

using namespace nnl;

namespace {

const char* const bytes = R"({"added_tokens": [
  {"id": 8, "content": "<s>", "special": true, "normalized": false},
  {"id": 9, "content": "ab c", "special": false, "normalized": true, "lstrip": true}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
  {"type": "Digits", "individual_digits": true},
  {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]},
 "post_processor": {"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
  "special_tokens": {"<s>": {"ids": [8]}}},
 "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "unk_token": null, "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4,
  "\u0120": 5, "\u0120ab": 6, "abc": 7, "\u00c3": 10, "\u00a9": 11},
 "merges": ["a b", ["b", "c"], "\u0120 ab", "ab c"]}})";

const char* const spaces = R"({"normalizer": {"type": "Sequence", "normalizers": [
  {"type": "Prepend", "prepend": "\u2581"},
  {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
 "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
 "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
  {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
  {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
 "model": {"vocab": {"<unk>": 0, "\u2581": 1, "a": 2, "\u2581a": 3, "<0xC3>": 4, "<0xA9>": 5},
  "merges": ["\u2581 a"], "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true}})";

const char* const words = R"({"normalizer": {"type": "BertNormalizer", "lowercase": true},
 "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##"},
 "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
 "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 9,
  "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "un": 3, "##aff": 4, "##able": 5, ".": 6}}})";

// The map of characters makes "b" of "a": a root, the unit of "a", and its leaf.
const char* const unigrams = R"({"normalizer": {"type": "Sequence", "normalizers": [
  {"type": "Precompiled", "precompiled_charsmap": "DAAAAACAAQAAAAAAAAAAAA=="}, {"type": "NFKC"}]},
 "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
 "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0],
  ["\u2581", -2.0], ["x", -2.5], ["xx", -4.5], ["\u2581x", -4.6], ["fi", -3.5]]}})";

void texts_become_tokens_and_texts_again(const std::string& path) {
  test::write_file(path, bytes);
  const Tokenizer one(path);
  const std::vector<int64_t> tokens = {8, 7, 6, 10, 11, 9};
  CHECK(one.encode("abc ab\xc3\xa9 ab c") == tokens);
  CHECK(one.encode("e\xcc\x81 \x61", false) == (std::vector<int64_t>{10, 11, 5, 0}));
  CHECK(one.encode("").size() == 1 && one.decode({8}).empty());
  CHECK(one.decode(tokens) ==
        "abc ab\xc3\xa9"
        "ab c");
  CHECK(one.decode({10, 99, -1}) == "\xef\xbf\xbd");
  TextStream stream(one);
  CHECK(stream.add(0) == "a" && stream.add(10).empty() && stream.add(11) == "\xc3\xa9");
  CHECK(stream.add(10).empty() && stream.rest() == "\xef\xbf\xbd");

  test::write_file(path, spaces);
  const Tokenizer two(path);
  CHECK(two.encode("a a\xc3\xa9xy") == (std::vector<int64_t>{3, 3, 4, 5, 0}));
  test::write_file(path, words);
  const Tokenizer three(path);
  CHECK(three.encode("Un\xc3\xa1"
                     "ffable. unaffables") == (std::vector<int64_t>{1, 3, 4, 5, 6, 0, 2}));
  CHECK(three.decode({3, 4, 5, 6}) == "unaffable.");
  test::write_file(path, unigrams);
  const Tokenizer four(path);
  CHECK(four.encode("xx \xef\xac\x81?!") == (std::vector<int64_t>{1, 3, 1, 5, 0}));
  CHECK(two.decode({3, 3, 4, 5, 4}) == "a a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

void damaged_files_are_refused_or_read(const std::string& path) {
  for (const char* good : {bytes, spaces, words, unigrams}) {
    test::write_file(path, good);
    const int refused = test::refused_copies(path, std::string(good).size(), [&] {
      const Tokenizer found(path);
      try {
        found.decode(found.encode("abc 12 ab c \xc3\xa9<s>e\xcc\x81 \xef\xac\x81"));
      } catch (const ValueError& e) {  // where the unknown token is damaged
        CHECK(std::string(e.what()) == "Tokenizer: the text has characters that are no tokens");
      }
      found.decode({0, 3, 5, 8, 9});
    });
    CHECK(refused > 500);
  }
}

}  // namespace

int main() {
  const std::string path = "tokenizer_test.json";
  texts_become_tokens_and_texts_again(path);
  damaged_files_are_refused_or_read(path);
  CHECK_ERROR(Tokenizer("nowhere.json"), "nowhere.json");
  std::remove(path.c_str());
}
