// SPDX-License-Identifier: Apache-2.0
#include "nnl/message_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "decimal.h"
#include "wire.h"

namespace nnl {
namespace {

constexpr size_t kDepth = 100;  // of messages in messages, as the protobuf package allows

// Numbers of types, and the wire types they have.
enum Type {
  kDouble = 1,
  kFloat = 2,
  kInt64 = 3,
  kBool = 8,
  kString = 9,
  kMessage = 11,
  kUint32 = 13
};

uint32_t wire_of(int type) {
  switch (type) {
    case kDouble:
      return Wire::fixed64;
    case kFloat:
      return Wire::fixed32;
    case kInt64:
    case kBool:
    case kUint32:
      return Wire::varint;
    default:
      return Wire::run;
  }
}

template <class T>
void append_bits(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// How many digits the text begins with.
size_t digits(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_digit(text[n])) ++n;
  return n;
}

bool append_integer(std::string& out, std::string_view text, bool is_signed) {
  const std::string_view digits_only = text.substr(!text.empty() && text[0] == '-');
  if (digits_only.empty() || digits(digits_only) != digits_only.size()) return false;
  if (digits_only[0] == '0' && digits_only.size() > 1) return false;  // octal
  int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{})
    return false;
  if (!is_signed && (value < 0 || value > UINT32_MAX)) return false;
  put_varint(out, static_cast<uint64_t>(value));
  return true;
}

// -?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?
bool is_decimal(std::string_view text) {
  text.remove_prefix(!text.empty() && text[0] == '-');
  const size_t whole = digits(text);
  if (!whole) return false;
  text.remove_prefix(whole);
  if (!text.empty() && text[0] == '.') text.remove_prefix(1 + digits(text.substr(1)));
  if (text.empty()) return true;
  if (text[0] != 'e' && text[0] != 'E') return false;
  text.remove_prefix(1);
  text.remove_prefix(!text.empty() && (text[0] == '-' || text[0] == '+'));
  return !text.empty() && digits(text) == text.size();
}

bool append_decimal(std::string& out, std::string_view text, bool single) {
  if (!is_decimal(text)) return false;
  const double value = decimal(std::string(text).c_str(), nullptr);
  if (!single) return append_bits(out, value), true;
  const auto rounded = static_cast<float>(value);
  if (std::isinf(rounded) && !std::isinf(value)) return false;
  append_bits(out, rounded);
  return true;
}

bool append_string(std::string& out, std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return false;
  text = text.substr(1, text.size() - 2);
  if (text.find_first_of("\"\\") != text.npos) return false;
  put_varint(out, text.size());
  out += text;
  return true;
}

bool append_value(std::string& out, std::string_view text, int type) {
  switch (type) {
    case kDouble:
      return append_decimal(out, text, false);
    case kFloat:
      return append_decimal(out, text, true);
    case kInt64:
      return append_integer(out, text, true);
    case kUint32:
      return append_integer(out, text, false);
    case kString:
      return append_string(out, text);
    case kBool:
      out += static_cast<char>(text == "true");
      return text == "true" || text == "false";
    default:
      return false;
  }
}

bool is_ascii(std::string_view text) {
  unsigned char any = 0;
  for (char c : text) any |= static_cast<unsigned char>(c);
  return any < 0x80;
}

}  // namespace

struct MessageText::Field {
  std::string name;  // what the view it is found by looks at
  std::string key;   // its number and wire type
  int type;
  size_t once;        // number of what may stand only once; 0: it may stand again
  std::string inner;  // name of the message in it, or empty
};

struct MessageText::Message {
  std::vector<Field> fields;
  std::unordered_map<std::string_view, const Field*> by_name;
  size_t groups = 1;  // of what may stand only once, and one for the rest
};

MessageText::MessageText(Describe describe) : describe_(std::move(describe)) {}
MessageText::~MessageText() = default;

const MessageText::Message& MessageText::known(const std::string& name) {
  std::unique_ptr<Message>& found = messages_[name];
  if (found) return *found;
  auto made = std::make_unique<Message>();
  std::unordered_map<std::string, size_t> groups;
  for (MessageField& f : describe_(name)) {
    std::string key;
    put_varint(key, f.number << 3 | wire_of(f.type));
    const size_t once =
        f.once.empty() ? 0 : groups.emplace(f.once, groups.size() + 1).first->second;
    made->fields.push_back({std::move(f.name), std::move(key), f.type, once, std::move(f.inner)});
  }
  for (const Field& f : made->fields) made->by_name.emplace(f.name, &f);
  made->groups += groups.size();
  if (!found) found = std::move(made);  // describing may have let another thread come first
  return *found;
}

std::optional<std::string> MessageText::encoded(const std::string& message, std::string_view text) {
  struct Open {
    const Message* message;
    std::string data;
    std::vector<bool> seen;
  };
  if (!is_ascii(text)) return std::nullopt;
  const auto open = [&](const std::string& name) {
    const Message& m = known(name);
    return Open{&m, {}, std::vector<bool>(m.groups)};
  };
  std::vector<Open> around;
  around.push_back(open(message));
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line.empty()) continue;
    line = line.substr(0, line.find_last_not_of(' ') + 1);
    if (line == "}") {
      if (around.size() == 1) return std::nullopt;
      const std::string inside = std::move(around.back().data);
      around.pop_back();
      put_varint(around.back().data, inside.size());
      around.back().data += inside;
      continue;
    }
    const bool begins = line.size() > 2 && line.substr(line.size() - 2) == " {";
    const size_t end = begins ? line.size() - 2 : line.find(": ");
    if (end == line.npos) return std::nullopt;
    Open& here = around.back();
    const auto found = here.message->by_name.find(line.substr(0, end));
    if (found == here.message->by_name.end()) return std::nullopt;
    const Field& field = *found->second;
    if (field.once) {
      if (here.seen[field.once]) return std::nullopt;
      here.seen[field.once] = true;
    }
    here.data += field.key;
    if (begins) {
      if (field.inner.empty() || around.size() > kDepth) return std::nullopt;
      around.push_back(open(field.inner));
    } else if (!append_value(here.data, line.substr(end + 2), field.type)) {
      return std::nullopt;
    }
  }
  if (around.size() > 1) return std::nullopt;
  return std::move(around.back().data);
}

}  // namespace nnl
