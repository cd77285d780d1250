// SPDX-License-Identifier: Apache-2.0
#include "ptx_text.h"

#include <algorithm>
#include <cctype>

namespace emu {
namespace {

bool begins_word(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}
bool in_word(char c) { return begins_word(c) || std::isdigit(static_cast<unsigned char>(c)); }

class Lexer {
 public:
  explicit Lexer(std::string_view s) : s_(s) {}

  std::vector<Token> run() {
    std::vector<Token> r;
    do r.push_back(next());
    while (r.back().kind != Token::kEnd);
    return r;
  }

 private:
  char peek(std::size_t k = 0) const { return at_ + k < s_.size() ? s_[at_ + k] : '\0'; }

  void skip() {
    while (at_ < s_.size()) {
      if (peek() == '/' && peek(1) == '/') {
        while (at_ < s_.size() && peek() != '\n') ++at_;
      } else if (peek() == '/' && peek(1) == '*') {
        while (at_ < s_.size() && !(peek() == '*' && peek(1) == '/')) line_ += s_[at_++] == '\n';
        at_ += 2;
      } else if (std::isspace(static_cast<unsigned char>(peek())) || peek() == '\0') {
        line_ += s_[at_++] == '\n';
      } else {
        return;
      }
    }
  }

  Token next() {
    skip();
    Token t;
    t.line = line_;
    if (at_ >= s_.size()) return t;
    const std::size_t start = at_;
    if (begins_word(peek())) {
      while (in_word(peek()) || (peek() == ':' && peek(1) == ':') ||
             (peek() == ':' && at_ > start && s_[at_ - 1] == ':'))
        ++at_;
      t.kind = Token::kWord;
      t.text = std::string(s_.substr(start, at_ - start));
    } else if (std::isdigit(static_cast<unsigned char>(peek()))) {
      number(t);
    } else if (peek() == '"') {
      ++at_;
      while (at_ < s_.size() && peek() != '"') ++at_;
      t.kind = Token::kText;
      t.text = std::string(s_.substr(start + 1, at_ - start - 1));
      ++at_;
    } else {
      t.kind = Token::kSign;
      t.text = std::string(s_.substr(at_++, 1));
    }
    return t;
  }

  void number(Token& t) {
    const std::size_t start = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '.') ++at_;
    const std::string word(s_.substr(start, at_ - start));
    const bool zero = word.size() > 2 && word[0] == '0';
    if (zero && (word[1] == 'f' || word[1] == 'F' || word[1] == 'd' || word[1] == 'D')) {
      t.kind = std::tolower(word[1]) == 'f' ? Token::kReal32 : Token::kReal64;
      t.bits = std::stoull(word.substr(2), nullptr, 16);
    } else if (word.find('.') != std::string::npos) {
      t.kind = Token::kReal64;
      t.bits = std::bit_cast<u64>(std::stod(word));
    } else {
      t.kind = Token::kNumber;
      const bool binary = zero && (word[1] == 'b' || word[1] == 'B');
      t.bits = binary ? std::stoull(word.substr(2), nullptr, 2) : std::stoull(word, nullptr, 0);
    }
  }

  std::string_view s_;
  std::size_t at_ = 0;
  u32 line_ = 1;
};

const std::pair<std::string_view, Type> kTypes[] = {
    {"pred", Type::kPred}, {"u8", Type::kU8},       {"b8", Type::kU8},        {"s8", Type::kS8},
    {"u16", Type::kU16},   {"b16", Type::kU16},     {"s16", Type::kS16},      {"u32", Type::kU32},
    {"b32", Type::kU32},   {"s32", Type::kS32},     {"u64", Type::kU64},      {"b64", Type::kU64},
    {"s64", Type::kS64},   {"f16", Type::kF16},     {"bf16", Type::kBF16},    {"f32", Type::kF32},
    {"f64", Type::kF64},   {"f16x2", Type::kF16x2}, {"bf16x2", Type::kBF16x2}};

}  // namespace

std::vector<Token> tokens_of(std::string_view ptx) { return Lexer(ptx).run(); }

std::vector<std::string> lines_of(std::string_view ptx) {
  std::vector<std::string> r;
  while (!ptx.empty()) {
    const std::size_t end = ptx.find('\n');
    std::string line(ptx.substr(0, end));
    std::replace(line.begin(), line.end(), '\t', ' ');
    line.erase(0, std::min(line.size(), line.find_first_not_of(' ')));
    r.push_back(line);
    if (end == std::string_view::npos) break;
    ptx.remove_prefix(end + 1);
  }
  return r;
}

Type type_named(std::string_view word) {
  for (const auto& [name, type] : kTypes)
    if (name == word) return type;
  return Type::kNone;
}

Name name_of(const std::string& opcode) {
  Name n;
  std::size_t start = 0;
  while (start <= opcode.size()) {
    const std::size_t end = std::min(opcode.find('.', start), opcode.size());
    const std::string word = opcode.substr(start, end - start);
    if (start == 0)
      n.base = word;
    else if (const Type t = type_named(word); t != Type::kNone)
      n.types.push_back(t);
    else
      n.words.push_back(word);
    start = end + 1;
  }
  return n;
}

bool Name::has(std::string_view word) const {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::size_t bytes_of(Type t) {
  switch (t) {
    case Type::kNone:
      return 0;
    case Type::kPred:
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBF16:
      return 2;
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
    default:
      return 4;
  }
}

}  // namespace emu
