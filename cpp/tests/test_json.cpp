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
  const char* texts[] = {"",          "{",           "[1,",   "[1 2]",
                         "{\"a\" 1}", "{1: 2}",      "nul",   "\"abc",
                         "\"\\x\"",   "\"\\ud800\"", "1e999", "99999999999999999999",
                         "-",         "[1] x",       "+1",    "\"\n\""};
  for (const char* text : texts) CHECK_ERROR(Json::parse(text), "no JSON");
  CHECK_ERROR(Json::parse(std::string(100000, '[')), "too deep");
}

}  // namespace

int main() {
  values_are_what_they_say();
  other_types_and_names_are_errors();
  what_is_no_json_is_refused();
}
