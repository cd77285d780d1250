// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace nnl {

// Made by cmake/unicode_tables.py. Runs of characters: the first one, and what they are.
extern const uint32_t char_kinds[], char_classes[];
extern const CharPair char_pairs[];  // in order
extern const size_t char_kinds_count, char_classes_count, char_pairs_count;
// A character, how many it becomes, and these; again and again.
extern const uint32_t char_lowers[], char_compatibles[];
extern const size_t char_lowers_count, char_compatibles_count;

namespace {

constexpr uint32_t unknown = 0xfffd;
// Hangul syllables are composed by a formula of their three parts.
constexpr uint32_t syllables = 0xac00, leads = 0x1100, vowels = 0x1161, tails = 0x11a7;
constexpr uint32_t vowel_count = 21, tail_count = 28, syllable_count = 11172;

uint32_t of_run(const uint32_t* runs, size_t count, uint32_t c, int bits) {
  const uint32_t mask = (1u << bits) - 1;
  return *(std::upper_bound(runs, runs + count, c << bits | mask) - 1) & mask;
}

uint32_t class_of(uint32_t c) { return of_run(char_classes, char_classes_count, c, 8); }

// What some characters become: the place of their count.
using Rewriting = std::unordered_map<uint32_t, const uint32_t*>;

Rewriting rewriting(const uint32_t* table, size_t count) {
  Rewriting found;
  for (size_t at = 0; at < count; at += 2 + table[at + 1]) found[table[at]] = table + at + 1;
  return found;
}

// Whether there is something that a character becomes, which is put behind `to`.
bool rewrite(const Rewriting& rewriting, uint32_t c, std::vector<uint32_t>& to) {
  const auto found = rewriting.find(c);
  if (found == rewriting.end()) return false;
  to.insert(to.end(), found->second + 1, found->second + 1 + *found->second);
  return true;
}

void decompose(std::vector<uint32_t>& to, uint32_t c) {
  if (c - syllables < syllable_count) {
    const uint32_t i = c - syllables, tail = i % tail_count;
    to.push_back(leads + i / tail_count / vowel_count);
    to.push_back(vowels + i / tail_count % vowel_count);
    if (tail) to.push_back(tails + tail);
    return;
  }
  const CharPair* end = char_pairs + char_pairs_count;
  const CharPair* found = std::lower_bound(
      char_pairs, end, c, [](const CharPair& p, uint32_t wanted) { return p.whole < wanted; });
  if (found == end || found->whole != c) return to.push_back(c);
  decompose(to, found->a);
  if (found->b) decompose(to, found->b);
}

uint32_t composition(uint32_t a, uint32_t b) {  // 0: there is none
  if (a - leads < 19 && b - vowels < vowel_count)
    return syllables + ((a - leads) * vowel_count + (b - vowels)) * tail_count;
  if (a - syllables < syllable_count && (a - syllables) % tail_count == 0 &&
      b - tails - 1 < tail_count - 1)
    return a + (b - tails);
  static const auto pairs = [] {
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> found;
    for (size_t i = 0; i < char_pairs_count; ++i)
      if (char_pairs[i].composes) found[{char_pairs[i].a, char_pairs[i].b}] = char_pairs[i].whole;
    return found;
  }();
  const auto found = pairs.find({a, b});
  return found == pairs.end() ? 0 : found->second;
}

}  // namespace

CharKind kind_of(uint32_t c) {
  return static_cast<CharKind>(of_run(char_kinds, char_kinds_count, c, 4));
}

void append_utf8(std::string& text, uint32_t c) {
  const auto more = [&](int shift) { text += static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xc0 | (c >> 6)), more(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xe0 | (c >> 12)), more(6), more(0);
  } else {
    text += static_cast<char>(0xf0 | (c >> 18)), more(12), more(6), more(0);
  }
}

uint32_t next_char(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at++);
  if (first < 0x80) return first;
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4) return unknown;
  // The second byte says whether the character is written too long, half a pair, or too large.
  uint8_t least = 0x80, greatest = 0xbf;
  if (first == 0xe0) least = 0xa0;
  if (first == 0xed) greatest = 0x9f;
  if (first == 0xf0) least = 0x90;
  if (first == 0xf4) greatest = 0x8f;
  uint32_t c = first & (0x3f >> more);
  for (int i = 0; i < more; ++i, least = 0x80, greatest = 0xbf) {
    if (at == text.size() || byte(at) < least || byte(at) > greatest) return unknown;
    c = c << 6 | (byte(at++) & 0x3f);
  }
  return c;
}

std::vector<uint32_t> chars_of(std::string_view text) {
  std::vector<uint32_t> found;
  found.reserve(text.size());
  for (size_t at = 0; at < text.size();) found.push_back(next_char(text, at));
  return found;
}

std::string utf8_of(const std::vector<uint32_t>& chars) {
  std::string found;
  for (uint32_t c : chars) append_utf8(found, c);
  return found;
}

std::string valid_utf8(std::string_view text) {
  std::string found;
  found.reserve(text.size());
  for (size_t at = 0; at < text.size();) append_utf8(found, next_char(text, at));
  return found;
}

std::string normal_form(const std::string& text, bool compatible, bool compose) {
  const auto plain = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), plain)) return text;
  std::vector<uint32_t> chars;
  static const Rewriting compatibles = rewriting(char_compatibles, char_compatibles_count);
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_char(text, at);
    if (!compatible || !rewrite(compatibles, c, chars)) decompose(chars, c);
  }
  // Marks behind a character go by their classes.
  const auto has_class = [](uint32_t c) { return class_of(c) != 0; };
  for (auto begin = chars.begin(); begin != chars.end();) {
    begin = std::find_if(begin, chars.end(), has_class);
    const auto end = std::find_if_not(begin, chars.end(), has_class);
    std::stable_sort(begin, end, [](uint32_t a, uint32_t b) { return class_of(a) < class_of(b); });
    begin = end;
  }
  if (!compose) return utf8_of(chars);
  // Then each joins the last character without a class, unless one of its class or more is between.
  std::vector<uint32_t> found;
  size_t base = chars.size();  // none yet
  uint32_t last = 0;           // the class of what was last kept behind it
  for (uint32_t c : chars) {
    const uint32_t own = class_of(c);
    if (base < found.size() && (base + 1 == found.size() || last < own)) {
      if (const uint32_t joined = composition(found[base], c)) {
        found[base] = joined;
        continue;
      }
    }
    if (own == 0) base = found.size();
    last = own;
    found.push_back(c);
  }
  return utf8_of(found);
}

std::string lowered(const std::string& text) {
  static const Rewriting lowers = rewriting(char_lowers, char_lowers_count);
  std::vector<uint32_t> chars;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_char(text, at);
    if (!rewrite(lowers, c, chars)) chars.push_back(c);
  }
  return utf8_of(chars);
}

std::vector<size_t> grapheme_ends(std::string_view text) {
  using Range = std::pair<uint32_t, uint32_t>;
  const auto among = [](std::initializer_list<Range> ranges, uint32_t c) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [c](const Range& r) { return c >= r.first && c <= r.second; });
  };
  // Marks stay with what is before them, but for these; so do some others.
  const auto joins = [&](uint32_t c) {
    if (is_mark(kind_of(c)))
      return !among({{0x102b, 0x102c},
                     {0x1038, 0x1038},
                     {0x1062, 0x1064},
                     {0x1067, 0x106d},
                     {0x1083, 0x1083},
                     {0x1087, 0x108c},
                     {0x108f, 0x108f},
                     {0x109a, 0x109c},
                     {0x1a61, 0x1a61},
                     {0x1a63, 0x1a64},
                     {0xaa7b, 0xaa7b},
                     {0xaa7d, 0xaa7d},
                     {0x11720, 0x11721}},
                    c);
    return among({{0x0e33, 0x0e33},
                  {0x0eb3, 0x0eb3},
                  {0x200c, 0x200d},
                  {0xff9e, 0xff9f},
                  {0x1f3fb, 0x1f3ff},
                  {0xe0020, 0xe007f}},
                 c);
  };
  const auto begins = [&](uint32_t c) {  // what is behind it stays with it
    return among({{0x0600, 0x0605},
                  {0x06dd, 0x06dd},
                  {0x070f, 0x070f},
                  {0x0890, 0x0891},
                  {0x08e2, 0x08e2},
                  {0x0d4e, 0x0d4e},
                  {0x110bd, 0x110bd},
                  {0x110cd, 0x110cd},
                  {0x111c2, 0x111c3}},
                 c);
  };
  const auto breaks = [&](uint32_t c) {
    const CharKind k = kind_of(c);
    if (k == CharKind::space) return c < 0x20 || c == 0x85 || c == 0x2028 || c == 0x2029;
    return k == CharKind::control && !joins(c) && !begins(c);
  };
  std::vector<size_t> ends;
  uint32_t last = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = next_char(text, at);
    const bool whole = last == '\r' ? c == '\n' : !breaks(last) && !breaks(c);
    if (begin > 0 && !(whole && (last == '\r' || joins(c) || begins(last)))) ends.push_back(begin);
    last = c;
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

}  // namespace nnl
