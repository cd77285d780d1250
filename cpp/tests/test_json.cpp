// SPDX-License-Identifier: Apache-2.0
// JSON that is right, and JSON that is not.
#include "check.h"
#include "nnl/json.h"

using namespace nnl;

namespace {

void values_are_what_they_say() {
  const Json x = Json::parse(
      R"( {"a": [1, -2.5e3, true, null], "b": {"c": "\u00e9\ud83d\ude00\n"}, "d": []} )");
  CHECK(x.at("a").array().size() == 4);
  CHECK(x.at("a").array()[0].integer() == 1);
  CHECK(x.at("a").array()[0].number() == 1.0);
  CHECK(x.at("a").array()[1].number() == -2500.0);
  CHECK(x.at("a").array()[2].flag());
  CHECK(x.at("a").array()[3].is_null());
  CHECK(x.at("b").at("c").text() == "\xc3\xa9\xf0\x9f\x98\x80\n");
  CHECK(x.at("d").integers().empty());
  CHECK(!x.find("e"));
  CHECK(Json::parse("-9223372036854775808").integer() == INT64_MIN);
}

void other_types_and_names_are_errors() {
  const Json x = Json::parse(R"({"a": 1.5})");
  CHECK_ERROR(x.at("b"), "'b' is missing");
  CHECK_ERROR(x.at("a").integer(), "wanted a whole number");
  CHECK_ERROR(x.at("a").text(), "wanted a text");
  CHECK_ERROR(x.array(), "wanted a list");
}

void what_is_no_json_is_refused() {
  const std::pair<const char*, const char*> texts[] = {
      {"", "the text ends at byte 0"},
      {"{", "the text ends at byte 1"},
      {"[1,", "the text ends at byte 3"},
      {"[1 2]", "']' is wanted at byte 3"},
      {"{\"a\" 1}", "':' is wanted at byte 5"},
      {"{\"a\":1 2}", "'}' is wanted at byte 7"},
      {"{1: 2}", "a name is wanted at byte 1"},
      {"nul", "an unknown word at byte 0"},
      {"\"abc", "a text has no end at byte 4"},
      {"\"abc\\", "a text has no end at byte 5"},
      {"\"\\x\"", "an unknown escape at byte 3"},
      {"\"\\u00g0\"", "four hexadecimal digits are wanted at byte 5"},
      {"\"\\ud800\"", "half of a surrogate pair at byte 7"},
      {"\"\\udc00\"", "half of a surrogate pair at byte 7"},
      {"\"\\ud800\\u0041\"", "half of a surrogate pair at byte 13"},
      {"1e999", "a number is wanted at byte 5"},
      {"1-2", "a number is wanted at byte 3"},
      {"99999999999999999999", "a number of more than 64 bits at byte 20"},
      {"-", "a value is wanted at byte 1"},
      {"+1", "a value is wanted at byte 2"},
      {"[1] x", "text after the end at byte 4"},
      {"\"\n\"", "a control character in a text at byte 2"}};
  for (const auto& [text, what] : texts)
    CHECK_ERROR(Json::parse(text), std::string("no JSON: ") + what);
  CHECK_ERROR(Json::parse(std::string(100000, '[')), "no JSON: too deep a nesting at byte 65");
}

}  // namespace

int main() {
  values_are_what_they_say();
  other_types_and_names_are_errors();
  what_is_no_json_is_refused();
}
