// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "check.h"
#include "damage.h"
#include "nnl/message_text.h"

namespace {

constexpr int kDouble = 1, kFloat = 2, kInt64 = 3, kBool = 8, kString = 9, kMessage = 11;

std::vector<nnl::MessageField> describe(const std::string& message) {
  CHECK(message == "Node");
  return {{"name", 1, kString, "name", ""},  {"n", 2, kInt64, "choice", ""},
          {"flag", 3, kBool, "choice", ""},  {"x", 4, kFloat, "", ""},
          {"y", 5, kDouble, "y", ""},        {"part", 6, kMessage, "", "Node"},
          {"of_another_kind", 20, 0, "", ""}};
}

std::optional<std::string> encoded(std::string_view text) {
  static nnl::MessageText reader(describe);
  return reader.encoded("Node", text);
}

std::string bytes(std::initializer_list<int> values) {
  std::string out;
  for (int v : values) out += static_cast<char>(v);
  return out;
}

void fields_become_their_bytes() {
  CHECK(encoded("") == "");
  CHECK(encoded("name: \"ab\"\n  n: 300 \n") == bytes({10, 2, 'a', 'b', 16, 0xAC, 2}));
  CHECK(encoded("n: -1") == bytes({16, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}));
  CHECK(encoded("x: 1\nx: -0.5e0") == bytes({37, 0, 0, 128, 63, 37, 0, 0, 0, 191}));
  CHECK(encoded(std::string_view("x: 12", 4)) == bytes({37, 0, 0, 128, 63}));  // to its end only
  CHECK(encoded("y: 2.") == bytes({41, 0, 0, 0, 0, 0, 0, 0, 64}));
  CHECK(encoded("part {\n part {\n flag: true\n }\n}\npart {\n}") ==
        bytes({50, 4, 50, 2, 24, 1, 50, 0}));
}

void what_is_unusual_is_left_alone() {
  for (const char* text : {"name: 'a'",
                           "name: \"a\" # b",
                           "name: \"a\\n\"",
                           "name: \"\xc3\xa4\"",
                           "n:1",
                           "n: 010",
                           "n: 0x10",
                           "n: 99999999999999999999",
                           "n: ",
                           "n: -",
                           "n",
                           "n {\n}",
                           "part: 1",
                           "part {",
                           "}",
                           "part {\n}}",
                           "flag: 1",
                           "x: inf",
                           "x: 1e39",
                           "x: .5",
                           "x: 1e",
                           "x: 1f",
                           "x: 0x1p3",
                           "y: 1\ny: 2",
                           "n: 1\nflag: true",
                           "of_another_kind: 1",
                           "unknown: 1",
                           "n: 1\r"})
    CHECK(!encoded(text));
}

void messages_in_messages_end_at_some_depth() {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "part {\n";
    for (int i = 0; i < depth; ++i) text += "}\n";
    return text;
  };
  CHECK(encoded(nested(100)).has_value());
  CHECK(!encoded(nested(101)));
}

// What the sanitizers watch.
void any_text_is_read_or_left_alone() {
  const std::string good = "name: \"ab\"\npart {\n  n: -30\n  x: 1.5e-3\n  part {\n  }\n}\nx: 2\n";
  const std::string letters = "\"019.-+eE{}: #\\\nnxy\x80";
  nnl::test::Draw any;
  int read = 0;
  for (int round = 0; round < 100000; ++round) {
    std::string text = good;
    for (size_t k = 0; k <= any(3); ++k) text[any(text.size())] = letters[any(letters.size())];
    if (any(4) == 0) text.resize(any(text.size()));
    const std::vector<char> exact(text.begin(), text.end());  // nothing behind its end
    read += encoded({exact.data(), exact.size()}).has_value();
  }
  CHECK(read > 1000);
}

}  // namespace

int main() {
  fields_become_their_bytes();
  what_is_unusual_is_left_alone();
  messages_in_messages_end_at_some_depth();
  any_text_is_read_or_left_alone();
}
