// SPDX-License-Identifier: Apache-2.0
#include "nnl/program_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "files.h"
#include "kernels/convert.h"
#include "nnl/crc32.h"
#include "nnl/errors.h"
#include "nnl/json.h"
#include "nnl/kernel.h"
#include "nnl/parameter_files.h"
#include "nnl/plan.h"
#include "nnp/message.h"
#include "nnp/network.h"
#include "open_program.h"
#include "safetensors.h"
#include "zip.h"

namespace nnl {
namespace {

constexpr int version = 3;  // 1: no open sizes; 2: no strings
constexpr const char* program_tensor = "nnl.program";
constexpr const char* language_tensor = "nnl.language";
constexpr const char* kernels_tensor = "nnl.opencl";
// ---- programs ----

double number_of(const Json& json) {
  if (json.is_object()) return std::stod(json.at("float").text());  // inf and nan are no JSON
  if (auto* b = std::get_if<bool>(&json.value)) return *b;
  return json.number();
}

Attribute attribute_of(const Json& json) {
  if (json.is_null()) return std::monostate{};
  if (auto* b = std::get_if<bool>(&json.value)) return *b;
  if (json.is_integer()) return json.integer();
  if (json.is_text()) return json.text();
  if (json.is_array()) {
    const Json::Array& items = json.array();
    if (std::all_of(items.begin(), items.end(), [](const Json& i) { return i.is_integer(); }))
      return json.integers();
    std::vector<double> numbers;
    for (const Json& item : items) numbers.push_back(number_of(item));
    return numbers;
  }
  return number_of(json);
}

using Attributes_ = std::unordered_map<std::string, Attribute>;

// Reads one program; every number in it is checked, so that nobody has to do it again.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  ProgramData read() {
    if (const Json* dims = json_.find("dims")) read_dims(*dims, data_);
    read_values();
    for (const auto& [op, attributes] : json_.at("ops").object()) {
      Attributes_& own = defaults_[op];
      for (const auto& [name, value] : attributes.object()) own[name] = attribute_or_none(value);
    }
    for (const Json& step : json_.at("steps").array()) data_.steps.push_back(read_step(step, 0));
    for (const auto& [name, number] : json_.at("outputs").object())
      data_.outputs.emplace_back(name, value(number));
    if (const Json* words = json_.find("words")) {
      for (const Json& word : words->array().at(0).array()) data_.words.push_back(word.text());
      for (const Json& name : words->array().at(1).array()) data_.texts.push_back(name.text());
    }
    if (const Json* counts = json_.find("counts"))
      for (const auto& [name, count] : counts->object()) read_count(name, count.array());
    for (const Json& number : json_.at("kept").array()) data_.kept.push_back(value(number));
    for (const Json& pair : json_.at("results").array())
      data_.results[value(pair.array().at(0))] = given(pair.array().at(1));
    for (const Json& pair : json_.at("carries").array()) {
      const Json& source = pair.array().at(1);
      const int to = given(pair.array().at(0)), from = source.integer() ? value(source) : 0;
      data_.carries[to] = from;
    }
    check_values(data_);
    return std::move(data_);
  }

 private:
  // Rules of updates are attributes too; kernels do not ask for them.
  static Attribute attribute_or_none(const Json& json) {
    if (json.is_object() && json.find("rule")) return std::monostate{};
    return attribute_of(json);
  }

  void read_count(const std::string& name, const Json::Array& count) {
    const auto number = [&](const std::string& wanted) {
      const auto is = [&](const auto& output) { return output.first == wanted; };
      const auto found = std::find_if(data_.outputs.begin(), data_.outputs.end(), is);
      if (found == data_.outputs.end()) throw ValueError("there is no output " + wanted);
      return static_cast<size_t>(found - data_.outputs.begin());
    };
    const ProgramData::Count one{number(name), number(count.at(0).text()),
                                 static_cast<size_t>(count.at(1).integer())};
    const auto spec = [&](size_t k) {
      return data_.values[static_cast<size_t>(data_.outputs[k].second)].spec;
    };
    const Spec n = spec(one.count);
    if (n.dtype != DType::i64 || !n.shape.empty() || one.axis >= spec(one.of).shape.size())
      throw ValueError("the output " + name + " has no such number of entries");
    data_.counts.push_back(one);
  }

  // The programs that an attribute is; whether it is any.
  static bool read_programs(const Json& json, std::vector<ProgramData>& programs) {
    const auto one = [&](const Json& item) {
      const Json* found = item.is_object() ? item.find("program") : nullptr;
      if (found) programs.push_back(Reader(*found).read());
      return found != nullptr;
    };
    if (!json.is_array()) return one(json);
    const Json::Array& items = json.array();
    return !items.empty() && std::all_of(items.begin(), items.end(), one);
  }

  void read_values() {
    static const std::array<const char*, 5> roles = {"input", "parameter", "state", "constant",
                                                     "intermediate"};
    static const std::array<const char*, 3> orders = {"host", "channels_last", "tiled"};
    static const bool tiles = !abilities("convolution").tiled_in.empty();  // in this build
    for (const Json& item : json_.at("values").array()) {
      const Json::Array& parts = item.array();
      ProgramValue v;
      v.root = static_cast<int>(data_.values.size());
      v.spec.dtype = type_named(parts.at(0).text());
      v.spec.shape = shape_of(parts.at(1), v.spec.dtype);
      static const Json nothing{Json::Object{}};
      const Json& more = parts.size() > 2 ? parts[2] : nothing;
      if (const Json* role = more.find("role"))
        v.role = static_cast<ProgramValue::Role>(index_of(roles, role->text()));
      if (const Json* order = more.find("order"))
        v.spec.layout = static_cast<Layout>(index_of(orders, order->text()));
      if (const Json* name = more.find("name")) v.name = name->text();
      if (const Json* root = more.find("root")) v.root = static_cast<int>(root->integer());
      if (const Json* copies = more.find("copies")) v.copies = static_cast<int>(copies->integer());
      if (const Json* fill = more.find("fill")) v.filled = true, v.fill = number_of(*fill);
      check_order(v.spec);
      // All that touches tiled weights takes plain ones too, if all of them are.
      if (v.spec.layout == Layout::tiled && !tiles) v.spec.layout = Layout::plain;
      data_.values.push_back(std::move(v));
    }
    for (size_t i = 1; i < data_.values.size(); ++i) at(data_.values[i].root), read_sizes(i);
  }

  void read_sizes(size_t i) {
    const Json::Array& parts = json_.at("values").array()[i - 1].array();
    const Json* sizes = parts.size() > 2 ? parts[2].find("sizes") : nullptr;
    if (!sizes) return;
    ProgramValue& v = data_.values[i];
    if (v.role == ProgramValue::Role::parameter || v.role == ProgramValue::Role::state ||
        (v.role == ProgramValue::Role::constant && !v.filled))
      throw ValueError("value " + std::to_string(i) + " is stored, and its size is open");
    if (sizes->array().size() != v.spec.shape.size())
      throw ValueError("value " + std::to_string(i) + " has other axes than open sizes");
    for (const Json& size : sizes->array()) {
      v.sizes.push_back(expression_of(size, data_));
      using Kind = SizeOp::Kind;
      if (const Kind kind = v.sizes.back()[0].kind;
          v.role == ProgramValue::Role::input &&
          (v.sizes.back().size() > 1 || (kind != Kind::whole && kind != Kind::dim)))
        throw ValueError("the input " + v.name + " has a size that is no name");
    }
  }

  template <size_t n>
  static size_t index_of(const std::array<const char*, n>& names, const std::string& name) {
    for (size_t i = 0; i < n; ++i)
      if (name == names[i]) return i;
    throw ValueError("'" + name + "' is unknown");
  }

  const ProgramValue& at(int64_t number) const {
    if (number <= 0 || number >= static_cast<int64_t>(data_.values.size()))
      throw ValueError("there is no value " + std::to_string(number));
    return data_.values[static_cast<size_t>(number)];
  }

  int value(const Json& json) const {
    at(json.integer());
    return static_cast<int>(json.integer());
  }

  int given(const Json& json) const {
    if (!at(json.integer()).given()) throw ValueError("a value is not a given one");
    return static_cast<int>(json.integer());
  }

  ProgramStep read_step(const Json& json, int depth) {
    if (depth > 8) throw ValueError("steps are nested too deep");
    ProgramStep s;
    s.op = json.at("op").text();
    const auto known = defaults_.find(s.op);
    if (known == defaults_.end()) throw ValueError("there is no op '" + s.op + "'");
    s.attributes = known->second;
    if (const Json* attributes = json.find("attrs"))
      for (const auto& [name, item] : attributes->object())
        if (!read_programs(item, s.programs[name])) {
          s.programs.erase(name);
          s.attributes[name] = attribute_or_none(item);
        }
    for (const Json& number : json.at("ins").array())
      s.in.push_back(number.integer() ? value(number) : 0);
    for (const Json& number : json.at("outs").array()) s.out.push_back(value(number));
    if (const Json* writes = json.find("writes"))
      for (int64_t place : writes->integers()) {
        if (place < 0 || place >= static_cast<int64_t>(s.in.size()))
          throw ValueError(s.op + " writes an input that it does not have");
        s.writes.push_back(static_cast<int>(place));
      }
    const auto flag = [&](const char* name) {
      const Json* found = json.find(name);
      return found && found->flag();
    };
    s.view = flag("view"), s.second = flag("second");
    if (s.view && (s.in.empty() || !s.in[0] || s.out.size() != 1))
      throw ValueError(s.op + " is a view of nothing");
    if (const Json* flops = json.find("flops")) s.flops = flops->integer();
    if (const Json* bytes = json.find("bytes")) s.bytes = bytes->integer();
    if (const Json* parts = json.find("parts"))
      for (const Json& part : parts->array()) s.parts.push_back(read_step(part, depth + 1));
    if (const Json* program = json.find("elementwise")) {
      s.code = program->at("code").integers();
      for (const Json& c : program->at("constants").array()) s.constants.push_back(number_of(c));
      for (const Json& shape : program->at("shapes").array()) s.shapes.push_back(shape.integers());
    }
    if (const Json* open = json.find("open")) read_open(*open, data_, s);
    s.label = label_of(s.op, json);
    return s;
  }

  std::string label_of(const std::string& op, const Json& json) const {
    const Json* number = json.find("source");
    if (!number) return op;
    const Json::Array& sources = json_.at("sources").array();
    if (number->integer() < 1 || number->integer() > static_cast<int64_t>(sources.size()))
      throw ValueError("there is no source " + std::to_string(number->integer()));
    const Json::Array& source = sources[static_cast<size_t>(number->integer() - 1)].array();
    const std::string &name = source.at(1).text(), &place = source.at(2).text();
    if (place.empty()) return name;
    return name + (place[0] == '(' ? " " : " in ") + place;
  }

  const Json& json_;
  std::unordered_map<std::string, Attributes_> defaults_;
  ProgramData data_;
};

}  // namespace

ProgramData program_of(const std::string& json) {
  const Json data = Json::parse(json);
  return Reader(data).read();
}

// ---- the file ----

ProgramFile::ProgramFile(const std::string& path, const std::string& only) : path_(path) {
  try {
    const size_t dot = path.rfind('.');
    if (dot != path.npos && path.substr(dot) == ".nnp") {
      read_nnp(only);
    } else {
      file_ = std::make_unique<MappedFile>(path);
      if (!Safetensors::begins(file_->data(), file_->size()))
        throw ValueError("it is no program of nnl (nn.save_program writes one)");
      tensors_ = std::make_unique<Safetensors>(file_->data(), file_->size());
      read();
    }
  } catch (const ValueError& e) {
    const std::string what = e.what();
    throw what.rfind(path, 0) == 0 ? e : ValueError(path + ": " + what);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // of a list or a number of the standard library
    throw ValueError(path + ": damaged");
  }
}

ProgramFile::~ProgramFile() = default;

void ProgramFile::read_nnp(const std::string& only) {
  const StoredParameters stored = read_parameters(path_);
  memory_.push_back(stored.memory);
  std::map<std::string, Spec> specs;
  for (const StoredParameter& p : stored.all) {
    FileArray array{p.spec, const_cast<void*>(p.data)};         // its memory is nobody else's
    if (p.spec.dtype == DType::f64 || is_half(p.spec.dtype)) {  // functions take float32
      array.spec.dtype = DType::f32;
      const auto converted = std::make_shared<Memory>(array.spec.bytes());
      conversion(p.spec.dtype, DType::f32)(p.data, converted->data(), p.spec.size());
      array.data = converted->data();
      memory_.push_back(converted);
    }
    specs[p.name] = array.spec;
    arrays_[p.name] = array;
    parameters_.emplace_back(p.name, p.need_grad);
  }
  const MappedFile file(path_);
  const Zip archive(file.bytes());
  ProtoMessage all;
  for (const Zip::Member& member : archive.members()) {
    const size_t dot = member.name.rfind('.');
    const std::string kind = dot == member.name.npos ? "" : member.name.substr(dot);
    if (kind != ".nntxt" && kind != ".prototxt" && kind != ".protobuf") continue;
    std::vector<char> content(member.size);
    Zip::unpack(member, content.data());
    const std::string_view text(content.data(), content.size());
    ProtoMessage one = kind == ".protobuf" ? decode("NNablaProtoBuf", text, "parameter")
                                           : decode_text("NNablaProtoBuf", text);
    for (const char* name : {"network", "executor"})
      for (ProtoMessage::Item& item : one.fields[name]) all.fields[name].push_back(std::move(item));
  }
  std::map<std::string, uint64_t> streams;
  programs_ = programs_of(all, specs, only, streams);
  for (const auto& [name, key] : streams) {
    streams_.push_back({key, 0});
    arrays_.emplace(name, FileArray{{{2}, DType::u64, Layout::plain}, streams_.back().data()});
  }
}

void ProgramFile::read() {
  arrays_ = tensors_->arrays;
  const auto found = arrays_.find(program_tensor);
  if (found == arrays_.end()) throw ValueError("it has no tensor 'nnl.program'");
  const std::string_view program(static_cast<char*>(found->second.data),
                                 found->second.spec.bytes());
  arrays_.erase(found);
  for (auto [name, to] : {std::pair{language_tensor, &language_}, {kernels_tensor, &kernels_}})
    if (const auto text = arrays_.find(name); text != arrays_.end()) {
      *to = {static_cast<char*>(text->second.data), text->second.spec.bytes()};
      arrays_.erase(text);
    }
  const std::string& said = tensors_->metadata["version"];
  if (said.empty() || said.find_first_not_of("0123456789") != said.npos)
    throw ValueError("damaged: its version is unknown");
  if (said.size() > 9 || std::stoi(said) > version)
    throw ValueError("has version " + said + " of the format, this nnl reads " +
                     std::to_string(version));
  const auto checksum = tensors_->metadata.find("crc32");
  if (checksum != tensors_->metadata.end() &&
      checksum->second != std::to_string(crc32(program.data(), program.size())))
    throw ValueError("damaged: 'nnl.program' has another CRC-32 than it had");
  try {
    const Json data = Json::parse(program);
    const int64_t own = data.at("version").integer();
    if (std::to_string(own) != said)
      throw ValueError("its version is " + said + ", and " + std::to_string(own) +
                       " in 'nnl.program'");
    if (own < 1) throw ValueError("its version is unknown");
    for (const auto& [name, one] : data.at("programs").object())
      if (programs_.emplace_back(name, Reader(one).read()); own < 3) {
        const ProgramData& program = programs_.back().second;
        if (!program.texts.empty())
          throw ValueError("program '" + name + "' has strings, which are of version 3");
        if (own < 2 && !program.dims.empty())
          throw ValueError("program '" + name + "' has open sizes, which are of version 2");
      }
    const auto parameters = tensors_->metadata.find("parameters");
    if (parameters == tensors_->metadata.end()) return;
    const Json names = Json::parse(parameters->second);
    for (const auto& [name, need_grad] : names.object())
      if (arrays_.count(name)) parameters_.emplace_back(name, need_grad.flag());
  } catch (const ValueError& e) {
    throw ValueError(std::string("damaged: ") + e.what());
  }
}

}  // namespace nnl
