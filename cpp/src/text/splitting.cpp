// SPDX-License-Identifier: Apache-2.0
#include "text/splitting.h"

#include <algorithm>

#include "nnl/errors.h"
#include "text/unicode.h"

namespace nnl {
namespace {

struct Chars {
  std::vector<uint32_t> c;
  std::vector<CharKind> kind;
  std::vector<size_t> byte;  // where each begins, and where the last ends

  explicit Chars(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      byte.push_back(at);
      c.push_back(next_char(text, at));
      kind.push_back(kind_of(c.back()));
    }
    byte.push_back(text.size());
  }

  size_t size() const { return c.size(); }
  bool is(size_t i, uint32_t wanted) const { return i < size() && c[i] == wanted; }
  bool newline(size_t i) const { return is(i, '\r') || is(i, '\n'); }
  bool space(size_t i) const { return i < size() && kind[i] == CharKind::space; }
  bool number(size_t i) const { return i < size() && kind[i] == CharKind::number; }
  bool letter(size_t i) const { return i < size() && is_letter(kind[i]); }
  bool other(size_t i) const {  // [^\s\p{L}\p{N}]
    return i < size() && !space(i) && !letter(i) && !number(i);
  }
  bool punctuation(size_t i) const {
    const bool sign = c[i] < 0x7f && c[i] > ' ' && kind[i] == CharKind::other;
    return sign || kind[i] == CharKind::punctuation;
  }
  bool before_word(size_t i) const {  // [^\r\n\p{L}\p{N}]
    return i < size() && !newline(i) && !letter(i) && !number(i);
  }
  bool high(size_t i) const {  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
    return (letter(i) && kind[i] != CharKind::lower) || (i < size() && is_mark(kind[i]));
  }
  bool low(size_t i) const {  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
    return (letter(i) && kind[i] != CharKind::upper) || (i < size() && is_mark(kind[i]));
  }

  // The end of a run of what a predicate takes.
  template <class F>
  size_t run(size_t i, F is) const {
    while (i < size() && (this->*is)(i)) ++i;
    return i;
  }
};

// 's|'t|'re|'ve|'m|'ll|'d; the same place if there is none.
size_t contraction(const Chars& t, size_t i, bool any_case) {
  if (!t.is(i, '\'')) return i;
  const auto at = [&](size_t k, char wanted) {
    const auto c = static_cast<uint32_t>(wanted);
    return t.is(k, c) || (any_case && (t.is(k, c - 32) || (c == 's' && t.is(k, 0x17f))));  // long s
  };
  for (char c : {'s', 't', 'm', 'd'})
    if (at(i + 1, c)) return i + 2;
  for (const char* two : {"re", "ve", "ll"})
    if (at(i + 1, two[0]) && at(i + 2, two[1])) return i + 3;
  return i;
}

// \s+(?!\S)|\s+: blanks, but the one before something else
size_t blanks(const Chars& t, size_t i) {
  const size_t end = t.run(i, &Chars::space);
  return end == t.size() || end - i < 2 ? end : end - 1;
}

size_t numbers(const Chars& t, size_t i, int most) {
  const size_t end = t.run(i, &Chars::number);
  return most ? std::min(end, i + static_cast<size_t>(most)) : end;
}

size_t simple(const Chars& t, size_t i) {
  if (const size_t end = contraction(t, i, false); end > i) return end;
  const size_t first = i + t.is(i, ' ');
  for (auto is : {&Chars::letter, &Chars::number, &Chars::other})
    if (const size_t end = t.run(first, is); end > first) return end;
  return blanks(t, i);
}

// \p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
size_t after_words(const Chars& t, size_t i, int most, bool slash) {
  if (t.number(i)) return numbers(t, i, most);
  const size_t first = i + t.is(i, ' ');
  if (size_t end = t.run(first, &Chars::other); end > first) {
    while (t.newline(end) || (slash && t.is(end, '/'))) ++end;
    return end;
  }
  for (size_t end = t.run(i, &Chars::space); end > i; --end)
    if (t.newline(end - 1)) return end;
  return blanks(t, i);
}

size_t words(const Chars& t, size_t i, const Splitter& p) {
  if (const size_t end = contraction(t, i, true); end > i) return end;
  const size_t first = t.letter(i) ? i : i + t.before_word(i);
  if (const size_t end = t.run(first, &Chars::letter); end > first) return end;
  return after_words(t, i, p.most, false);
}

size_t cased(const Chars& t, size_t i, const Splitter& p) {
  const auto with_contraction = [&](size_t end) {
    return p.contractions ? contraction(t, end, true) : end;
  };
  // high*low+, then high+low*, each with one character before it if that is possible
  for (bool needs_low : {true, false}) {
    for (size_t first = i + t.before_word(i);; --first) {
      const size_t middle = t.run(first, &Chars::high), end = t.run(middle, &Chars::low);
      if (!needs_low && middle > first) return with_contraction(end);
      if (needs_low && end > middle) return with_contraction(end);
      if (needs_low)
        for (size_t k = middle; k > first; --k)  // high gives back what low takes too
          if (t.low(k - 1)) return with_contraction(k);
      if (first == i) break;
    }
  }
  return after_words(t, i, p.most, true);
}

}  // namespace

Splitter splitter_of(const std::string& expression) {
  using Kind = Splitter::Kind;
  const std::string ends = R"('s|'t|'re|'ve|'m|'ll|'d)", blank = R"(|\s+(?!\S)|\s+)",
                    other = R"(| ?[^\s\p{L}\p{N}]+)", line = R"(|\s*[\r\n]+)",
                    before = R"([^\r\n\p{L}\p{N}]?)", high = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                    low = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])", any_case = "(?i:" + ends + ")";
  if (expression == " {2,}") return {Kind::spaces};
  if (expression == R"(\s+)") return {Kind::blanks};
  if (expression == ends + R"(| ?\p{L}+| ?\p{N}+)" + other + blank) return {Kind::simple, 0};
  for (const auto& [most, number] :
       {std::pair<int, const char*>{1, R"(\p{N})"}, {3, R"(\p{N}{1,3})"}}) {
    if (expression == number) return {Kind::numbers, most};
    const std::string then = std::string("|") + number + other;
    if (expression == any_case + "|" + before + R"(\p{L}+)" + then + R"([\r\n]*)" + line + blank)
      return {Kind::words, most};
    for (bool with : {true, false}) {
      const std::string end = with ? any_case + "?" : "";
      if (expression == before + high + "*" + low + "+" + end + "|" + before + high + "+" + low +
                            "*" + end + then + R"([\r\n/]*)" + line + blank)
        return {Kind::cased, most, with};
    }
  }
  throw ValueError("the expression " + expression.substr(0, 300) + " is not known");
}

std::vector<std::pair<size_t, size_t>> matches(const Splitter& pattern, std::string_view text) {
  std::vector<std::pair<size_t, size_t>> found;
  if (pattern.kind == Splitter::Kind::literal) {
    const size_t n = pattern.text.size();
    for (size_t at = 0; n && (at = text.find(pattern.text, at)) != text.npos; at += n)
      found.emplace_back(at, at + n);
    return found;
  }
  const Chars t(text);
  for (size_t i = 0; i < t.size();) {
    size_t end = i;
    switch (pattern.kind) {
      case Splitter::Kind::blanks:
        end = t.run(i, &Chars::space);
        break;
      case Splitter::Kind::spaces:
        while (t.is(end, ' ')) ++end;
        if (end == i + 1) end = i;
        break;
      case Splitter::Kind::marks:
        end = i + t.punctuation(i);
        break;
      case Splitter::Kind::simple:
        end = simple(t, i);
        break;
      case Splitter::Kind::words:
        end = words(t, i, pattern);
        break;
      case Splitter::Kind::cased:
        end = cased(t, i, pattern);
        break;
      default:
        end = numbers(t, i, pattern.most);
    }
    if (end > i) found.emplace_back(t.byte[i], t.byte[end]);
    i = std::max(end, i + 1);
  }
  return found;
}

}  // namespace nnl
