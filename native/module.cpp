// The Python module cloister.core._native: arrays in, exact integers out; the lock is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T, int D>
using Array = nb::ndarray<const T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;
constexpr int BLOCK_CELLS = 1 << 9;  // whose floats and rules stay in the first two caches

template <class T, int D>
using Answer = nb::ndarray<nb::numpy, T, nb::ndim<D>>;

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (auto lanes = cloister::available(); *lanes; lanes++) names.push_back((*lanes)->name);
  return names;
}

const cloister::Lanes& chosen(const std::string& name) {
  for (auto lanes = cloister::available(); *lanes; lanes++)
    if ((*lanes)->name == name) return **lanes;
  throw std::invalid_argument("this machine has no instruction set '" + name + "'.");
}

void check(const cloister::Records& records, const cloister::Centres& centres, size_t columns) {
  if (columns != size_t(records.d) || records.d == 0 || centres.k == 0)
    throw std::invalid_argument(
        "records and centres must have the same columns, and at least one.");
  if (!cloister::exact(records, centres))
    throw std::invalid_argument("distances of records and centres are too large to be exact.");
}

cloister::Centres given(const Array<int64_t, 2>& centres) {
  return {centres.data(), int(centres.shape(0))};
}

cloister::Records given(const Array<int32_t, 2>& records, int64_t one) {
  return {records.data(), int64_t(records.shape(0)), int(records.shape(1)), one};
}

// Zeros; pages that nobody writes are never touched.
template <class T>
struct Zeros {
  explicit Zeros(size_t size)
      : values(static_cast<T*>(std::calloc(size + 1, sizeof(T))), std::free) {
    if (!values) throw std::bad_alloc();
  }
  T* get() const { return values.get(); }
  std::unique_ptr<T, decltype(&std::free)> values;
};

template <int D, class T>
Answer<T, D> answer(Zeros<T> zeros, std::initializer_list<size_t> shape) {
  T* data = zeros.values.release();
  return Answer<T, D>(data, shape, nb::capsule(data, [](void* p) noexcept { std::free(p); }));
}

// Sums of records, or of what is known to be ordered; those know their largest number.
template <class Table>
Answer<int64_t, 2> sum_near(const Table& table, const cloister::Records& records,
                            const Array<int64_t, 2>& centres, int64_t radius_squared, bool relative,
                            const std::string& isa) {
  const auto& lanes = chosen(isa);
  const size_t k = centres.shape(0), d = centres.shape(1);
  check(records, given(centres), d);
  Zeros<int64_t> sums(k * (d + 1));
  {
    nb::gil_scoped_release unlocked;
    cloister::sum_near(lanes, table, given(centres), radius_squared, relative, sums.get());
  }
  return answer<2>(std::move(sums), {k, d + 1});
}

// What the sums of clipped differences ask of each centre's radius and of the unit.
void check(const Array<int64_t, 1>& radii, int64_t unit, size_t k) {
  const auto positive = [](int64_t radius) { return radius >= 1; };
  if (radii.shape(0) != k || !std::all_of(radii.data(), radii.data() + k, positive))
    throw std::invalid_argument("each centre must have a radius of at least 1.");
  if (unit < 1 || unit > (1 << 24)) throw std::invalid_argument("unit must be in [1, 2^24].");
}

Answer<int64_t, 2> sum_clipped(Array<int32_t, 2> table, Array<int64_t, 2> centres,
                               Array<int64_t, 1> radii, int64_t unit, int64_t one,
                               const std::string& isa) {
  const auto& lanes = chosen(isa);
  const size_t k = centres.shape(0), d = centres.shape(1);
  const auto records = given(table, one);
  check(records, given(centres), d);
  check(radii, unit, k);
  Zeros<int64_t> sums(k * (d + 1));
  {
    nb::gil_scoped_release unlocked;
    cloister::sum_clipped(lanes, records, given(centres), radii.data(), unit, sums.get());
  }
  return answer<2>(std::move(sums), {k, d + 1});
}

std::pair<Answer<int64_t, 2>, Answer<int64_t, 2>> sum_moments(
    Array<int32_t, 2> table, Array<int64_t, 2> centres, Array<int64_t, 1> radii,
    Array<int64_t, 1> reach, int64_t unit, int64_t fine, int64_t one, const std::string& isa) {
  const auto& lanes = chosen(isa);
  const size_t k = centres.shape(0), d = centres.shape(1), products = d * (d + 1) / 2;
  const auto records = given(table, one);
  check(records, given(centres), d);
  check(radii, unit, k);
  check(reach, fine, k);
  Zeros<int64_t> sums(k * (d + 1)), moments(k * products);
  {
    nb::gil_scoped_release unlocked;
    cloister::sum_moments(lanes, records, given(centres), radii.data(), unit, reach.data(), fine,
                          sums.get(), moments.get());
  }
  return {answer<2>(std::move(sums), {k, d + 1}), answer<2>(std::move(moments), {k, products})};
}

Answer<int64_t, 1> nearest(Array<int32_t, 2> table, Array<int64_t, 2> centres, int64_t one,
                           const std::string& isa) {
  const auto& lanes = chosen(isa);
  const auto records = given(table, one);
  check(records, given(centres), centres.shape(1));
  const size_t n = table.shape(0);
  Zeros<int64_t> labels(n);
  {
    nb::gil_scoped_release unlocked;
    cloister::nearest(lanes, records, given(centres), labels.get());
  }
  return answer<1>(std::move(labels), {n});
}

Answer<int64_t, 2> two_nearest(Array<int32_t, 2> table, Array<int64_t, 2> centres, int64_t one,
                               const std::string& isa) {
  const auto& lanes = chosen(isa);
  const auto records = given(table, one);
  check(records, given(centres), centres.shape(1));
  const size_t n = table.shape(0);
  Zeros<int64_t> found(4 * n);
  {
    nb::gil_scoped_release unlocked;
    cloister::two_nearest(lanes, records, given(centres), found.get());
  }
  return answer<2>(std::move(found), {4, n});
}

cloister::Ordered ordered(const std::vector<Array<int32_t, 2>>& tables) {
  std::vector<cloister::Records> parts;
  for (const auto& table : tables) parts.push_back(given(table, 1));
  for (const auto& part : parts)
    if (part.d == 0 || part.d != parts[0].d)
      throw std::invalid_argument("tables must have the same columns, and at least one.");
  if (parts.empty()) throw std::invalid_argument("there must be a table to order.");
  nb::gil_scoped_release unlocked;
  return cloister::ordered(parts);
}

using FloatColumn = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;

// Repeats the rules of a row `rows` times.
template <class To, class Rule, class Change>
std::vector<To> repeated(const Array<Rule, 1>& rules, int rows, Change change) {
  std::vector<To> row, all;
  for (size_t i = 0; i < rules.shape(0); i++) row.push_back(change(rules.data()[i]));
  for (int t = 0; t < rows; t++) all.insert(all.end(), row.begin(), row.end());
  return all;
}

template <class T>
using Written = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void encode(const std::vector<FloatColumn>& columns, Written<int32_t> steps,
            Written<uint8_t> flags, Array<double, 1> low, Array<double, 1> high,
            Array<double, 1> centre, Array<double, 1> factor, Array<double, 1> known,
            Array<bool, 1> integer, Array<bool, 1> boolean, int64_t one, const std::string& isa) {
  const auto& lanes = chosen(isa);
  const size_t d = columns.size(), n = d ? columns[0].shape(0) : 0;
  std::vector<cloister::Column> cells;
  for (const auto& column : columns) {
    const bool narrow = column.dtype() == nb::dtype<float>();
    if (!narrow && column.dtype() != nb::dtype<double>())
      throw std::invalid_argument("columns must be of floats.");
    if (column.shape(0) != n) throw std::invalid_argument("columns must be equally long.");
    const int64_t size = narrow ? sizeof(float) : sizeof(double);
    cells.push_back({static_cast<const char*>(column.data()), column.stride(0) * size, narrow});
  }
  for (const auto& rules : {low, high, centre, factor, known})
    if (d == 0 || rules.shape(0) != d) throw std::invalid_argument("each column must have rules.");
  for (const auto& rules : {integer, boolean})
    if (rules.shape(0) != d) throw std::invalid_argument("each column must have rules.");
  if (one < 1 || one > (1 << 24)) throw std::invalid_argument("one must be in [1, 2^24].");
  const auto fits = [&](const auto& table) { return table.shape(0) == n && table.shape(1) == d; };
  if (!fits(steps) || !fits(flags)) throw std::invalid_argument("each cell must have a place.");

  const int rows = std::max(1, BLOCK_CELLS / int(d));
  const auto same = [](double rule) { return rule; };
  const auto mask = [](bool rule) { return rule ? int64_t(-1) : int64_t(0); };
  const auto lows = repeated<double>(low, rows, same), highs = repeated<double>(high, rows, same);
  const auto centres = repeated<double>(centre, rows, same);
  const auto factors = repeated<double>(factor, rows, same);
  const auto fills = repeated<double>(known, rows, same);
  const auto integers = repeated<int64_t>(integer, rows, mask);
  const auto booleans = repeated<int64_t>(boolean, rows, mask);
  const auto given = [](int64_t rule) { return rule != 0; };
  const bool typed = std::any_of(integers.begin(), integers.end(), given) ||
                     std::any_of(booleans.begin(), booleans.end(), given);
  const cloister::Cells rules{int(d),          rows,           lows.data(),  highs.data(),
                              centres.data(),  factors.data(), fills.data(), integers.data(),
                              booleans.data(), typed,          int32_t(one)};
  nb::gil_scoped_release unlocked;
  cloister::encode(lanes, cells.data(), n, rules, steps.data(), flags.data());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The loops over records, compiled; cloister.tasks.kernel says what they compute.";
  m.def("instruction_sets", &instruction_sets, "Those that this machine has, the best first.");
  m.def(
      "sum_near",
      [](Array<int32_t, 2> table, Array<int64_t, 2> centres, int64_t radius_squared, bool relative,
         int64_t one, const std::string& isa) {
        const auto records = given(table, one);
        return sum_near(records, records, centres, radius_squared, relative, isa);
      },
      "records"_a.noconvert(), "centres"_a.noconvert(), nb::kw_only(), "radius_squared"_a,
      "relative"_a, "one"_a, "isa"_a);
  m.def("sum_clipped", &sum_clipped, "records"_a.noconvert(), "centres"_a.noconvert(),
        "radii"_a.noconvert(), nb::kw_only(), "unit"_a, "one"_a, "isa"_a);
  m.def("sum_moments", &sum_moments, "records"_a.noconvert(), "centres"_a.noconvert(),
        "radii"_a.noconvert(), "reach"_a.noconvert(), nb::kw_only(), "unit"_a, "fine"_a, "one"_a,
        "isa"_a);
  nb::class_<cloister::Ordered>(m, "Ordered")
      .def_ro("one", &cloister::Ordered::one)
      .def_prop_ro(
          "rows",
          [](const cloister::Ordered& o) {
            const size_t shape[2] = {size_t(o.n), size_t(o.d)};
            return nb::ndarray<nb::numpy, const int32_t, nb::ndim<2>>(o.rows.get(), 2, shape,
                                                                      nb::handle());
          },
          nb::rv_policy::reference_internal)
      .def(
          "sum_near",
          [](const cloister::Ordered& o, Array<int64_t, 2> centres, int64_t radius_squared,
             bool relative, const std::string& isa) {
            return sum_near(o, o.records(), centres, radius_squared, relative, isa);
          },
          "centres"_a.noconvert(), nb::kw_only(), "radius_squared"_a, "relative"_a, "isa"_a);
  m.def("ordered", &ordered, "tables"_a);
  m.def("nearest", &nearest, "records"_a.noconvert(), "centres"_a.noconvert(), nb::kw_only(),
        "one"_a, "isa"_a);
  m.def("two_nearest", &two_nearest, "records"_a.noconvert(), "centres"_a.noconvert(),
        nb::kw_only(), "one"_a, "isa"_a);
  m.def("encode", &encode, "columns"_a, "steps"_a.noconvert(), "flags"_a.noconvert(), nb::kw_only(),
        "low"_a, "high"_a, "centre"_a, "factor"_a, "known"_a, "integer"_a, "boolean"_a, "one"_a,
        "isa"_a);
}
