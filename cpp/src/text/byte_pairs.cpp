// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: a piece of text becomes the tokens that its characters are joined to.
#include <queue>
#include <tuple>

#include "nnl/errors.h"
#include "text/model.h"
#include "text/parts.h"
#include "text/unicode.h"

namespace nnl {
namespace {

uint64_t key_of(int64_t a, int64_t b) {
  return static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b);
}

class BytePairs : public TextModel {
 public:
  explicit BytePairs(const Json& json);
  void encode(const std::string& piece, std::vector<int64_t>& to) const override;

 private:
  struct Merge {
    int64_t rank, id;
  };

  void add_merge(const std::string& a, const std::string& b, int64_t rank);

  std::unordered_map<uint64_t, Merge> merges_;  // by two ids
  int64_t unknown_ = -1;
  bool byte_fallback_ = false, fuse_unknown_ = false, whole_first_ = false;
};

BytePairs::BytePairs(const Json& json) {
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* found = json.find(name);
    if (found && !found->is_null() && !(found->is_text() && found->text().empty()))
      throw ValueError(std::string("the model has ") + name + ", which is not supported");
  }
  add_all(json.at("vocab"));
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
  unknown_ = named(json, "unk_token");
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
  const auto put = [&](int64_t id) {
    const size_t at = symbols.size();
    symbols.push_back({id, at ? at - 1 : none, at + 1});
  };
  bool unknown_before = false;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    next_char(piece, at);
    const std::string one = piece.substr(begin, at - begin);
    const int64_t id = find(one);
    std::vector<int64_t> bytes;
    const bool unknown = id < 0 && !(byte_fallback_ && add_bytes(one, bytes));
    if (id >= 0) bytes = {id};
    for (int64_t own : bytes) put(own);
    if (unknown && unknown_ >= 0 && !(unknown_before && fuse_unknown_)) put(unknown_);
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

}  // namespace

std::unique_ptr<TextModel> byte_pairs_of(const Json& json) {
  return std::make_unique<BytePairs>(json);
}

}  // namespace nnl
