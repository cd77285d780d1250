// SPDX-License-Identifier: Apache-2.0
#include "nnl/json.h"

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "decimal.h"
#include "nnl/errors.h"
#include "text/unicode.h"

namespace nnl {
namespace {

constexpr int deepest = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json whole() {
    Json found = value(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the end");
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ValueError("no JSON: " + what + " at byte " + std::to_string(at_));
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  char peek() {
    skip_space();
    if (at_ >= text_.size()) fail("the text ends");
    return text_[at_];
  }

  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) fail("an unknown word");
    at_ += w.size();
  }

  Json value(int depth) {
    if (depth > deepest) fail("too deep a nesting");
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return {text()};
      case 't':
        return word("true"), Json{true};
      case 'f':
        return word("false"), Json{false};
      case 'n':
        return word("null"), Json{};
      default:
        return number();
    }
  }

  Json object(int depth) {
    Json::Object found;
    ++at_;
    if (take('}')) return {std::move(found)};
    do {
      if (peek() != '"') fail("a name is wanted");
      std::string name = text();
      if (!take(':')) fail("':' is wanted");
      found.emplace_back(std::move(name), value(depth + 1));
    } while (take(','));
    if (!take('}')) fail("'}' is wanted");
    return {std::move(found)};
  }

  Json array(int depth) {
    Json::Array found;
    ++at_;
    if (take(']')) return {std::move(found)};
    do {
      found.push_back(value(depth + 1));
    } while (take(','));
    if (!take(']')) fail("']' is wanted");
    return {std::move(found)};
  }

  std::string text() {
    std::string found;
    ++at_;
    while (true) {
      if (at_ >= text_.size()) fail("a text has no end");
      const char c = text_[at_++];
      if (c == '"') return found;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a text");
      if (c != '\\') {
        found += c;
        continue;
      }
      if (at_ >= text_.size()) fail("a text has no end");
      const char e = text_[at_++];
      switch (e) {
        case 'b':
          found += '\b';
          break;
        case 'f':
          found += '\f';
          break;
        case 'n':
          found += '\n';
          break;
        case 'r':
          found += '\r';
          break;
        case 't':
          found += '\t';
          break;
        case 'u':
          append_utf8(found, code_point());
          break;
        case '"':
        case '\\':
        case '/':
          found += e;
          break;
        default:
          fail("an unknown escape");
      }
    }
  }

  uint32_t four_digits() {
    uint32_t found = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size() || !std::isxdigit(static_cast<unsigned char>(text_[at_])))
        fail("four hexadecimal digits are wanted");
      const char c = text_[at_];
      found = found * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return found;
  }

  uint32_t code_point() {
    const uint32_t first = four_digits();
    if (first < 0xd800 || first > 0xdfff) return first;
    if (first > 0xdbff || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
    at_ += 2;
    const uint32_t second = four_digits();
    if (second < 0xdc00 || second > 0xdfff) fail("half of a surrogate pair");
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
  }

  Json number() {
    const size_t begin = at_;
    bool whole = true;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '.' || c == 'e' || c == 'E') {
        whole = false;
      } else if (!(c >= '0' && c <= '9') && c != '-' && c != '+') {
        break;
      }
      ++at_;
    }
    const std::string digits(text_.substr(begin, at_ - begin));
    const size_t first = digits.size() && digits[0] == '-';
    if (first >= digits.size() || digits[first] < '0' || digits[first] > '9')
      fail("a value is wanted");
    char* end = nullptr;
    errno = 0;
    if (whole) {
      const long long n = std::strtoll(digits.c_str(), &end, 10);
      if (errno == ERANGE) fail("a number of more than 64 bits");
      if (*end) fail("a number is wanted");
      return {static_cast<int64_t>(n)};
    }
    const double x = decimal(digits.c_str(), &end);
    if (*end || !std::isfinite(x)) fail("a number is wanted");
    return {x};
  }

  std::string_view text_;
  size_t at_ = 0;
};

template <class T>
const T& as(const Json& json, const char* wanted) {
  const T* found = std::get_if<T>(&json.value);
  if (!found) throw ValueError(std::string("wanted ") + wanted);
  return *found;
}

}  // namespace

Json Json::parse(std::string_view text) { return Parser(text).whole(); }

bool Json::flag() const { return as<bool>(*this, "true or false"); }
int64_t Json::integer() const { return as<int64_t>(*this, "a whole number"); }
double Json::number() const {
  return is_integer() ? static_cast<double>(integer()) : as<double>(*this, "a number");
}
const std::string& Json::text() const { return as<std::string>(*this, "a text"); }
const Json::Array& Json::array() const { return as<Array>(*this, "a list"); }
const Json::Object& Json::object() const { return as<Object>(*this, "an object"); }

std::vector<int64_t> Json::integers() const {
  std::vector<int64_t> found;
  for (const Json& item : array()) found.push_back(item.integer());
  return found;
}

const Json* Json::find(const std::string& name) const {
  for (const auto& [key, item] : object())
    if (key == name) return &item;
  return nullptr;
}

const Json& Json::at(const std::string& name) const {
  const Json* found = find(name);
  if (!found) throw ValueError("'" + name + "' is missing");
  return *found;
}

}  // namespace nnl
