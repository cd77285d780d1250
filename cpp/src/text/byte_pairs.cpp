// SPDX-License-Identifier: Apache-2.0
#include "text/byte_pairs.h"

#include <cstdio>
#include <queue>
#include <tuple>

#include "nnl/errors.h"
#include "text/unicode.h"

namespace nnl {
namespace {

uint64_t key_of(int64_t a, int64_t b) {
  return static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b);
}

bool flag(const Json& json, const char* name) {
  const Json* found = json.find(name);
  return found && !found->is_null() && found->flag();
}

}  // namespace

BytePairs::BytePairs(const Json& json) {
  const Json* type = json.find("type");
  if (type && type->text() != "BPE")
    throw ValueError("the model is " + type->text() + ", wanted BPE");
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* found = json.find(name);
    if (found && !found->is_null() && !(found->is_text() && found->text().empty()))
      throw ValueError(std::string("the model has ") + name + ", which is not supported");
  }
  for (const auto& [token, id] : json.at("vocab").object()) {
    if (id.integer() < 0 || id.integer() > INT32_MAX)
      throw ValueError("the token " + token + " is " + std::to_string(id.integer()));
    ids_[token] = id.integer();
  }
  for (const auto& [token, id] : ids_) tokens_[id] = &token;
  int64_t rank = 0;
  for (const Json& merge : json.at("merges").array()) {
    if (merge.is_text()) {
      const std::string& both = merge.text();
      const size_t blank = both.find(' ');
      if (blank == both.npos) throw ValueError("the merge " + both + " is no pair");
      add_merge(both.substr(0, blank), both.substr(blank + 1), rank++);
    } else if (merge.array().size() == 2) {
      add_merge(merge.array()[0].text(), merge.array()[1].text(), rank++);
    } else {
      throw ValueError("a merge is no pair");
    }
  }
  byte_fallback_ = flag(json, "byte_fallback"), fuse_unknown_ = flag(json, "fuse_unk");
  whole_first_ = flag(json, "ignore_merges");
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    bytes_[static_cast<size_t>(b)] = find(name);
  }
  const Json* unknown = json.find("unk_token");
  if (unknown && !unknown->is_null() && (unknown_ = find(unknown->text())) < 0)
    throw ValueError("unk_token is " + unknown->text() + ", which is no token");
}

int64_t BytePairs::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

const std::string* BytePairs::token(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

void BytePairs::add_merge(const std::string& a, const std::string& b, int64_t rank) {
  const int64_t first = find(a), second = find(b), both = find(a + b);
  if (first < 0 || second < 0 || both < 0)
    throw ValueError("the merge of " + a + " and " + b + " is of what are no tokens");
  merges_[key_of(first, second)] = {rank, both};
}

void BytePairs::encode(const std::string& piece, std::vector<int64_t>& to) const {
  if (whole_first_) {
    if (const int64_t whole = find(piece); whole >= 0) return to.push_back(whole);
  }
  struct Symbol {
    int64_t id;
    size_t before, after;  // neighbours
  };
  std::vector<Symbol> symbols;
  const size_t none = SIZE_MAX;
  const auto add = [&](int64_t id) {
    const size_t at = symbols.size();
    symbols.push_back({id, at ? at - 1 : none, at + 1});
  };
  bool unknown_before = false;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    next_char(piece, at);
    const int64_t id = find(piece.substr(begin, at - begin));
    bool by_bytes = id < 0 && byte_fallback_;
    for (size_t k = begin; by_bytes && k < at; ++k)
      by_bytes = bytes_[static_cast<uint8_t>(piece[k])] >= 0;
    const bool unknown = id < 0 && !by_bytes;
    if (by_bytes) {
      for (size_t k = begin; k < at; ++k) add(bytes_[static_cast<uint8_t>(piece[k])]);
    } else if (!unknown) {
      add(id);
    } else if (unknown_ >= 0 && !(unknown_before && fuse_unknown_)) {
      add(unknown_);
    }
    unknown_before = unknown;
  }
  if (symbols.empty()) return;
  symbols.back().after = none;

  // The best merge first, of equal ones the leftmost. Entries whose symbols have changed are stale.
  using Entry = std::tuple<int64_t, size_t, int64_t>;  // rank, place, what it becomes
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto merge_at = [&](size_t i) {
    if (i == none || symbols[i].after == none) return merges_.end();
    return merges_.find(key_of(symbols[i].id, symbols[symbols[i].after].id));
  };
  const auto push = [&](size_t i) {
    if (const auto found = merge_at(i); found != merges_.end())
      queue.emplace(found->second.rank, i, found->second.id);
  };
  for (size_t i = 0; i < symbols.size(); ++i) push(i);
  while (!queue.empty()) {
    const auto [rank, i, id] = queue.top();
    queue.pop();
    if (symbols[i].id < 0) continue;
    const auto found = merge_at(i);
    if (found == merges_.end() || found->second.id != id) continue;
    Symbol& second = symbols[symbols[i].after];
    symbols[i].id = id, symbols[i].after = second.after, second.id = -1;
    if (second.after != none) symbols[second.after].before = i;
    push(symbols[i].before), push(i);
  }
  for (const Symbol& s : symbols)
    if (s.id >= 0) to.push_back(s.id);
}

}  // namespace nnl
