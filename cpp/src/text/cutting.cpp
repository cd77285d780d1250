// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "nnl/errors.h"
#include "text/parts.h"

namespace nnl {
namespace {

enum class Cut { isolated, removed, with_before, with_after };

// Cuts pieces where a pattern is found, or where it is not if `invert`.
void split(Pieces& pieces, const Splitter& pattern, Cut cut, bool invert) {
  Pieces found;
  for (const Piece& piece : pieces) {
    if (piece.token >= 0) {
      found.push_back(piece);
      continue;
    }
    size_t begin = 0;  // of what has not been given away
    const auto give = [&](size_t end) {
      if (end > begin)
        found.push_back({piece.text.substr(begin, end - begin), piece.first && begin == 0});
      begin = end;
    };
    const auto take = [&](size_t from, size_t to) {  // what is looked for
      if (from == to) return;
      if (cut != Cut::with_before) give(from);
      if (cut == Cut::removed) begin = to;
      if (cut != Cut::with_after) give(to);
    };
    size_t end = 0;
    for (const auto& [from, to] : matches(pattern, piece.text)) {
      invert ? take(end, from) : take(from, to);
      end = to;
    }
    if (invert) take(end, piece.text.size());
    give(piece.text.size());
  }
  pieces = std::move(found);
}

Cut cut_of(const std::string& name) {
  if (name == "Isolated") return Cut::isolated;
  if (name == "Removed") return Cut::removed;
  if (name == "MergedWithPrevious") return Cut::with_before;
  if (name == "MergedWithNext") return Cut::with_after;
  unknown("behavior", name, "Isolated, Removed, MergedWithPrevious or MergedWithNext");
}

template <class F>
auto on_texts(F change) {
  return [change](Pieces& pieces) {
    for (Piece& piece : pieces)
      if (piece.token < 0) change(piece);
  };
}

}  // namespace

Changes<Pieces> cuts_of(const Json* json) {
  Changes<Pieces> found;
  const auto add_split = [&](Splitter pattern, Cut cut, bool invert = false) {
    found.emplace_back([pattern = std::move(pattern), cut, invert](Pieces& pieces) {
      split(pieces, pattern, cut, invert);
    });
  };
  each_part(json, "pretokenizers", [&](const Json& part, const std::string& type) {
    if (type == "ByteLevel") {
      if (flag(part, "add_prefix_space", true))
        found.push_back(on_texts([](Piece& p) {
          if (p.text[0] != ' ') p.text = " " + p.text;
        }));
      if (flag(part, "use_regex", true)) add_split({Splitter::Kind::simple, 0}, Cut::isolated);
      found.push_back(on_texts([](Piece& p) {
        std::string as_chars;
        for (char c : p.text) as_chars += char_of_byte(static_cast<uint8_t>(c));
        p.text = std::move(as_chars);
      }));
    } else if (type == "Split") {
      add_split(pattern_of(part), cut_of(part.at("behavior").text()), flag(part, "invert"));
    } else if (type == "BertPreTokenizer" || type == "WhitespaceSplit") {
      add_split({Splitter::Kind::blanks}, Cut::removed);
      if (type == "BertPreTokenizer") add_split({Splitter::Kind::marks}, Cut::isolated);
    } else if (type == "Punctuation") {
      add_split({Splitter::Kind::marks}, cut_of(part.at("behavior").text()));
    } else if (type == "Digits") {
      const int most = flag(part, "individual_digits") ? 1 : 0;
      add_split({Splitter::Kind::numbers, most}, Cut::isolated);
    } else if (type == "Metaspace") {
      const Metaspace m(part);
      found.push_back(on_texts([m](Piece& p) {
        replace_all(p.text, " ", m.blank);
        const bool begins = p.text.compare(0, m.blank.size(), m.blank) == 0;
        if ((m.always || (m.first && p.first)) && !begins) p.text = m.blank + p.text;
      }));
      if (flag(part, "split", true))
        add_split({Splitter::Kind::literal, 0, false, m.blank}, Cut::with_after);
    } else {
      unknown("pre_tokenizer", type,
              "ByteLevel, Split, Digits, Metaspace, BertPreTokenizer, WhitespaceSplit, Punctuation "
              "or a Sequence of such");
    }
  });
  return found;
}

}  // namespace nnl
