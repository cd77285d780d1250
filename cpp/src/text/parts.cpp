// SPDX-License-Identifier: Apache-2.0
#include "text/parts.h"

#include <unordered_map>

#include "nnl/errors.h"
#include "text/unicode.h"

namespace nnl {
namespace {

struct ByteChars {
  std::string of[256];
  std::unordered_map<uint32_t, int> byte;

  ByteChars() {
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool seen = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
      const uint32_t c = seen ? static_cast<uint32_t>(b) : next++;
      append_utf8(of[b], c);
      byte[c] = b;
    }
  }
};

const ByteChars& byte_chars() {
  static const ByteChars found;
  return found;
}

}  // namespace

const std::string& char_of_byte(uint8_t byte) { return byte_chars().of[byte]; }

int byte_of_char(uint32_t c) {
  const auto found = byte_chars().byte.find(c);
  return found == byte_chars().byte.end() ? -1 : found->second;
}

bool flag(const Json& json, const char* name, bool otherwise) {
  const Json* found = json.find(name);
  return found && !found->is_null() ? found->flag() : otherwise;
}

void unknown(const std::string& what, const std::string& name, const char* known) {
  throw ValueError("the " + what + " " + name + " is not known, wanted " + known);
}

void each_part(const Json* json, const char* list,
               const std::function<void(const Json&, const std::string& type)>& take) {
  if (!json || json->is_null()) return;
  if (json->at("type").text() != "Sequence") return take(*json, json->at("type").text());
  for (const Json& part : json->at(list).array()) {
    const std::string& type = part.at("type").text();
    if (type == "Sequence") throw ValueError("a Sequence is in a Sequence");
    take(part, type);
  }
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
}

const std::string& literal(const Json& json) {
  const Json* found = json.at("pattern").find("String");
  if (!found) throw ValueError("Replace looks for an expression, wanted a text");
  return found->text();
}

Metaspace::Metaspace(const Json& json) : blank(json.at("replacement").text()) {
  const Json* scheme = json.find("prepend_scheme");
  always = scheme ? scheme->text() == "always" : flag(json, "add_prefix_space", true);
  first = scheme && scheme->text() == "first";
  if (scheme && !always && !first && scheme->text() != "never")
    unknown("prepend_scheme", scheme->text(), "always, first or never");
}

Changes<std::string> normalizers_of(const Json* json) {
  Changes<std::string> found;
  each_part(json, "normalizers", [&](const Json& part, const std::string& type) {
    if (type == "NFC") {
      found.emplace_back([](std::string& text) { text = composed(text); });
    } else if (type == "Prepend") {
      found.emplace_back([begin = part.at("prepend").text()](std::string& text) {
        if (!text.empty()) text = begin + text;
      });
    } else if (type == "Replace") {
      found.emplace_back([from = literal(part), to = part.at("content").text()](std::string& text) {
        replace_all(text, from, to);
      });
    } else {
      unknown("normalizer", type, "NFC, Prepend, Replace or a Sequence of such");
    }
  });
  return found;
}

}  // namespace nnl
