// SPDX-License-Identifier: Apache-2.0
#include "text/model.h"

#include <cstdio>

#include "nnl/errors.h"
#include "text/parts.h"

namespace nnl {

std::unique_ptr<TextModel> text_model_of(const Json& json) {
  const Json* type = json.find("type");
  if (!type || type->text() == "BPE") return byte_pairs_of(json);
  if (type->text() == "WordPiece") return word_pieces_of(json);
  if (type->text() == "Unigram") return unigrams_of(json);
  unknown("model", type->text(), "BPE, WordPiece or Unigram");
}

void TextModel::add(const std::string& token, int64_t id) {
  if (id < 0 || id > INT32_MAX)
    throw ValueError("the token " + token + " is " + std::to_string(id));
  ids_[token] = id;
}

void TextModel::add_all(const Json& vocab) {
  for (const auto& [token, id] : vocab.object()) add(token, id.integer());
  end_vocabulary();
}

void TextModel::end_vocabulary() {
  for (const auto& [token, id] : ids_) tokens_[id] = &token;
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    bytes_[static_cast<size_t>(b)] = find(name);
  }
}

int64_t TextModel::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

int64_t TextModel::named(const Json& json, const char* key) const {
  const Json* name = json.find(key);
  if (!name || name->is_null()) return -1;
  const int64_t id = find(name->text());
  if (id < 0) throw ValueError(std::string(key) + " is " + name->text() + ", which is no token");
  return id;
}

const std::string* TextModel::token(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

bool TextModel::add_bytes(const std::string& text, std::vector<int64_t>& to) const {
  for (char c : text)
    if (bytes_[static_cast<uint8_t>(c)] < 0) return false;
  for (char c : text) to.push_back(bytes_[static_cast<uint8_t>(c)]);
  return true;
}

}  // namespace nnl
