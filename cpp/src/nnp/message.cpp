// SPDX-License-Identifier: Apache-2.0
#include "message.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "../wire.h"
#include "nnl/errors.h"
#include "nnl/message_text.h"

namespace nnl {

const char* nnabla_messages();  // messages.tsv, put into the library by the build

namespace {

using Table = std::map<std::string, std::vector<MessageRow>>;

const Table& table() {
  static const Table found = [] {
    Table all;
    std::istringstream lines(nnabla_messages());
    std::string line;
    std::getline(lines, line);  // names of the columns
    while (std::getline(lines, line)) {
      std::istringstream columns(line);
      std::string message;
      MessageRow row;
      columns >> message;
      std::vector<MessageRow>& rows = all[message];
      if (columns >> row.name >> row.number >> row.type >> row.label) {
        columns >> row.oneof;
        rows.push_back(row);
      }
    }
    return all;
  }();
  return found;
}

// The numbers of FieldDescriptorProto.Type.
int kind_of(const MessageRow& row) {
  static const std::map<std::string, int> kinds = {{"double", 1}, {"float", 2},  {"int64", 3},
                                                   {"uint64", 4}, {"int32", 5},  {"bool", 8},
                                                   {"string", 9}, {"bytes", 12}, {"uint32", 13}};
  if (row.label == "map") return 0;
  const auto known = kinds.find(row.type);
  return known == kinds.end() ? 11 : known->second;
}

// shortest: the decimal number that a float32 stands for: 0.9, not 0.8999999761581421.
double shortest(float value) {
  char text[32];
  for (int digits = 6; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(text, nullptr) == value) break;
  }
  return std::strtod(text, nullptr);
}

ProtoMessage::Item number_item(const std::string& type, uint64_t bits) {
  ProtoMessage::Item item;
  item.integer = static_cast<int64_t>(bits);
  if (type == "float") {
    float value;
    std::memcpy(&value, &bits, 4);
    item.number = shortest(value);
  } else if (type == "double") {
    std::memcpy(&item.number, &bits, 8);
  }
  return item;
}

ProtoMessage decoded(const std::string& name, std::string_view data, const std::string& without,
                     int depth) {
  if (depth > 16) throw ValueError("messages are nested too deep");
  ProtoMessage found;
  const std::vector<MessageRow>& rows = rows_of(name);
  for (Wire field(data); field.next();) {
    const MessageRow* row = nullptr;
    for (const MessageRow& r : rows)
      if (r.number == field.number) row = &r;
    if (!row || row->label == "map" || row->name == without) continue;
    std::vector<ProtoMessage::Item>& items = found.fields[row->name];
    if (row->label == "singular") items.clear();  // the last one counts
    const int kind = kind_of(*row);
    const bool real = kind == 1 || kind == 2;
    if (kind == 9 || kind == 12) {
      if (field.kind != Wire::run) throw ValueError("a field of a message has another type");
      items.emplace_back().text = field.bytes;
    } else if (kind == 11) {
      if (field.kind != Wire::run) throw ValueError("a field of a message has another type");
      items.emplace_back().message.push_back(decoded(row->type, field.bytes, "", depth + 1));
    } else if (field.kind != Wire::run) {
      if (real != (field.kind != Wire::varint))
        throw ValueError("a field of a message has another type");
      items.push_back(number_item(row->type, field.value));
    } else if (real) {  // packed
      const size_t size = kind == 1 ? 8 : 4;
      for (size_t at = 0; at + size <= field.bytes.size(); at += size) {
        uint64_t bits = 0;
        std::memcpy(&bits, field.bytes.data() + at, size);
        items.push_back(number_item(row->type, bits));
      }
    } else {
      for (Wire packed(field.bytes); packed.more();)
        items.push_back(number_item(row->type, packed.take_varint()));
    }
  }
  return found;
}

}  // namespace

const ProtoMessage::Item& ProtoMessage::item(const std::string& name) const {
  static const Item nothing;
  const auto found = fields.find(name);
  return found == fields.end() || found->second.empty() ? nothing : found->second.back();
}

std::vector<std::string> ProtoMessage::texts(const std::string& name) const {
  std::vector<std::string> out;
  if (const auto found = fields.find(name); found != fields.end())
    for (const Item& item : found->second) out.push_back(item.text);
  return out;
}

std::vector<int64_t> ProtoMessage::integers(const std::string& name) const {
  std::vector<int64_t> out;
  if (const auto found = fields.find(name); found != fields.end())
    for (const Item& item : found->second) out.push_back(item.integer);
  return out;
}

std::vector<const ProtoMessage*> ProtoMessage::messages(const std::string& name) const {
  std::vector<const ProtoMessage*> out;
  if (const auto found = fields.find(name); found != fields.end())
    for (const Item& item : found->second)
      for (const ProtoMessage& m : item.message) out.push_back(&m);
  return out;
}

const std::vector<MessageRow>& rows_of(const std::string& message) {
  static const std::vector<MessageRow> none;
  const auto found = table().find(message);
  return found == table().end() ? none : found->second;
}

ProtoMessage decode(const std::string& message, std::string_view data, const std::string& without) {
  return decoded(message, data, without, 0);
}

std::string binary_of_text(const std::string& message, std::string_view text) {
  MessageText reader([](const std::string& name) {
    std::vector<MessageField> fields;
    for (const MessageRow& r : rows_of(name)) {
      const int kind = kind_of(r);
      const std::string once = r.label == "singular" ? (r.oneof.empty() ? r.name : r.oneof) : "";
      fields.push_back({r.name, r.number, kind, once, kind == 11 ? r.type : ""});
    }
    return fields;
  });
  auto binary = reader.encoded(message, text);
  if (!binary) throw ValueError("its text is not as nnl and NNabla write it");
  return std::move(*binary);
}

ProtoMessage decode_text(const std::string& message, std::string_view text) {
  return decode(message, binary_of_text(message, text), "parameter");
}

}  // namespace nnl
