// SPDX-License-Identifier: Apache-2.0
// Messages of NNabla's files, decoded by the table that Python reads them with, messages.tsv.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nnl {

struct ProtoMessage {
  // What a field holds: one of these, by its type in the table.
  struct Item {
    int64_t integer = 0;  // also 0 and 1 of a bool
    double number = 0;    // of float and double
    std::string text;
    std::vector<ProtoMessage> message;  // one
  };
  std::map<std::string, std::vector<Item>> fields;

  bool has(const std::string& name) const { return fields.count(name) > 0; }
  // What a field that is not there holds is "" and 0.
  const Item& item(const std::string& name) const;
  const std::string& text(const std::string& name) const { return item(name).text; }
  int64_t integer(const std::string& name) const { return item(name).integer; }
  std::vector<std::string> texts(const std::string& name) const;
  std::vector<int64_t> integers(const std::string& name) const;
  std::vector<const ProtoMessage*> messages(const std::string& name) const;
};

// A field of a message, as the table has it.
struct MessageRow {
  std::string name;
  uint32_t number;
  std::string type, label, oneof;
};
// The fields of a message of the table; none if it does not know it.
const std::vector<MessageRow>& rows_of(const std::string& message);

// A message in the text or the binary form. What the table does not know is skipped, and so is
// what `without` names in the outermost message. ValueError: it is damaged, or its text is not as
// programs write it.
ProtoMessage decode(const std::string& message, std::string_view data,
                    const std::string& without = "");
ProtoMessage decode_text(const std::string& message, std::string_view text);

// The binary form of a message in text form. ValueError: its text is not as programs write it.
std::string binary_of_text(const std::string& message, std::string_view text);

}  // namespace nnl
