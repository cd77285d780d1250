// SPDX-License-Identifier: Apache-2.0
#include "text/parts.h"

#include <algorithm>
#include <unordered_map>

#include "nnl/errors.h"
#include "text/char_map.h"
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

Splitter pattern_of(const Json& json) {
  const Json& pattern = json.at("pattern");
  if (const Json* said = pattern.find("String"))
    return {Splitter::Kind::literal, 0, false, said->text()};
  return splitter_of(pattern.at("Regex").text());
}

std::function<void(std::string&)> replacement_of(const Json& json) {
  return [pattern = pattern_of(json), to = json.at("content").text()](std::string& text) {
    std::string found;
    size_t rest = 0;
    for (const auto& [begin, end] : matches(pattern, text)) {
      found.append(text, rest, begin - rest).append(to);
      rest = end;
    }
    text = found.append(text, rest);
  };
}

Metaspace::Metaspace(const Json& json) : blank(json.at("replacement").text()) {
  const Json* scheme = json.find("prepend_scheme");
  always = scheme ? scheme->text() == "always" : flag(json, "add_prefix_space", true);
  first = scheme && scheme->text() == "first";
  if (scheme && !always && !first && scheme->text() != "never")
    unknown("prepend_scheme", scheme->text(), "always, first or never");
}

namespace {

// What BERT does to texts, in this order.
struct BertNormalizer {
  bool cleans, spreads, strips, lowers;

  explicit BertNormalizer(const Json& json)
      : cleans(flag(json, "clean_text", true)),
        spreads(flag(json, "handle_chinese_chars", true)),
        strips(flag(json, "strip_accents", flag(json, "lowercase", true))),
        lowers(flag(json, "lowercase", true)) {}

  void operator()(std::string& text) const {
    std::string found;
    for (size_t at = 0; at < text.size();) {
      const uint32_t c = next_char(text, at);
      const CharKind kind = kind_of(c);
      if (cleans && is_removed(c, kind)) continue;
      const bool spread = spreads && is_chinese(c);
      if (spread) found += ' ';
      cleans&& kind == CharKind::space ? found += ' ' : (append_utf8(found, c), found);
      if (spread) found += ' ';
    }
    if (strips) {
      found = normal_form(found, false, false);
      remove_if(found, [](uint32_t c) { return kind_of(c) == CharKind::accent; });
    }
    text = lowers ? lowered(found) : found;
  }

  template <class F>
  static void remove_if(std::string& text, F is) {
    std::string found;
    for (size_t at = 0; at < text.size();) {
      const uint32_t c = next_char(text, at);
      if (!is(c)) append_utf8(found, c);
    }
    text = std::move(found);
  }

 private:
  static bool is_removed(uint32_t c, CharKind kind) {
    if (c == '\t' || c == '\n' || c == '\r') return false;
    return c < 0x20 || (c > 0x7e && c < 0xa0) || c == 0xfffd || kind == CharKind::control;
  }

  static bool is_chinese(uint32_t c) {
    constexpr uint32_t ranges[][2] = {{0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df},
                                      {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf},
                                      {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
    for (const auto& [first, last] : ranges)
      if (c >= first && c <= last) return true;
    return false;
  }
};

void strip(std::string& text, bool left, bool right) {
  size_t first = text.size(), last = 0;  // what is no blank
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (kind_of(next_char(text, at)) == CharKind::space) continue;
    first = std::min(first, begin), last = at;
  }
  if (right) text.resize(last);
  if (left) text.erase(0, first);
}

}  // namespace

Changes<std::string> normalizers_of(const Json* json) {
  Changes<std::string> found;
  each_part(json, "normalizers", [&](const Json& part, const std::string& type) {
    if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
      found.emplace_back([compatible = type.size() == 4, compose = type.back() == 'C'](
                             std::string& text) { text = normal_form(text, compatible, compose); });
    } else if (type == "Prepend") {
      found.emplace_back([begin = part.at("prepend").text()](std::string& text) {
        if (!text.empty()) text = begin + text;
      });
    } else if (type == "Replace") {
      found.push_back(replacement_of(part));
    } else if (type == "BertNormalizer") {
      found.emplace_back(BertNormalizer(part));
    } else if (type == "Lowercase") {
      found.emplace_back([](std::string& text) { text = lowered(text); });
    } else if (type == "StripAccents") {
      found.emplace_back([](std::string& text) {
        BertNormalizer::remove_if(text, [](uint32_t c) { return is_mark(kind_of(c)); });
      });
    } else if (type == "Strip") {
      found.emplace_back([left = flag(part, "strip_left"), right = flag(part, "strip_right")](
                             std::string& text) { strip(text, left, right); });
    } else if (type == "Precompiled") {
      const Json& map = part.at("precompiled_charsmap");
      if (map.is_null() || map.text().empty()) return;
      found.emplace_back(
          [map = CharMap(map.text())](std::string& text) { text = map.apply(text); });
    } else {
      unknown("normalizer", type,
              "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, StripAccents, Lowercase, "
              "BertNormalizer, Precompiled or a Sequence of such");
    }
  });
  return found;
}

}  // namespace nnl
