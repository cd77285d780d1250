// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "nnl/errors.h"
#include "text/parts.h"
#include "text/unicode.h"

namespace nnl {
namespace {

void join_by_blanks(Words& words) {
  for (size_t i = 1; i < words.size(); ++i) words[i] = " " + words[i];
}

// English has no blanks before these.
void remove_blanks(std::string& word) {
  constexpr const char* pairs[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                      {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                      {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                      {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : pairs) replace_all(word, from, to);
}

void join_bytes(Words& words) {
  std::string bytes;
  for (const std::string& word : words) {
    std::string own;
    for (uint32_t c : chars_of(word)) {
      const int byte = byte_of_char(c);
      if (byte < 0) {
        own = word;
        break;
      }
      own += static_cast<char>(byte);
    }
    bytes += own;
  }
  words = {valid_utf8(bytes)};
}

// <0xE2><0x82><0xAC> to the character that these are, or to one U+FFFD for each.
void join_named_bytes(Words& words) {
  Words found;
  std::string bytes;
  const auto end = [&] {
    if (bytes.empty()) return;
    const bool valid = valid_utf8(bytes) == bytes;
    for (size_t i = 0; !valid && i < bytes.size(); ++i) found.push_back("\xef\xbf\xbd");
    if (valid) found.push_back(bytes);
    bytes.clear();
  };
  for (std::string& word : words) {
    const bool is_byte = word.size() == 6 && word.compare(0, 3, "<0x") == 0 && word[5] == '>' &&
                         word.find_first_not_of("0123456789abcdefABCDEF", 3) == 5;
    if (is_byte) {
      bytes += static_cast<char>(std::stoi(word.substr(3, 2), nullptr, 16));
    } else {
      end();
      found.push_back(std::move(word));
    }
  }
  end();
  words = std::move(found);
}

}  // namespace

Changes<Words> decoders_of(const Json* json) {
  Changes<Words> found;
  if (!json || json->is_null()) found.emplace_back(join_by_blanks);
  each_part(json, "decoders", [&](const Json& part, const std::string& type) {
    if (type == "ByteLevel") {
      found.emplace_back(join_bytes);
    } else if (type == "ByteFallback") {
      found.emplace_back(join_named_bytes);
    } else if (type == "Fuse") {
      found.emplace_back([](Words& words) {
        std::string all;
        for (const std::string& word : words) all += word;
        words = {all};
      });
    } else if (type == "Replace") {
      found.emplace_back([change = replacement_of(part)](Words& words) {
        for (std::string& word : words) change(word);
      });
    } else if (type == "Strip") {
      found.emplace_back([c = part.at("content").text(), start = part.at("start").integer(),
                          stop = part.at("stop").integer()](Words& words) {
        for (std::string& word : words) {
          const auto blank = [&](size_t at) { return word.compare(at, c.size(), c) == 0; };
          for (int64_t n = start; n > 0 && !word.empty() && blank(0); --n) word.erase(0, c.size());
          for (int64_t n = stop; n > 0 && word.size() >= c.size() && blank(word.size() - c.size());
               --n)
            word.resize(word.size() - c.size());
        }
      });
      if (part.at("content").text().empty()) throw ValueError("Strip has no content");
    } else if (type == "Metaspace") {
      const Metaspace m(part);
      found.emplace_back([m](Words& words) {
        for (size_t i = 0; i < words.size(); ++i)
          replace_all(words[i], m.blank, i == 0 && (m.always || m.first) ? "" : " ");
      });
    } else if (type == "WordPiece") {
      found.emplace_back(
          [prefix = part.at("prefix").text(), tidy = flag(part, "cleanup", true)](Words& words) {
            for (size_t i = 0; i < words.size(); ++i) {
              if (i > 0) {
                if (words[i].compare(0, prefix.size(), prefix) == 0) {
                  words[i].erase(0, prefix.size());
                } else {
                  words[i] = " " + words[i];
                }
              }
              if (tidy) remove_blanks(words[i]);
            }
          });
    } else {
      unknown("decoder", type,
              "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece or a Sequence "
              "of such");
    }
  });
  return found;
}

}  // namespace nnl
