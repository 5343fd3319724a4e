// The loops over records that silos wait for, and what each instruction set does in them.
//
// Records are int32 grid steps, row by row. All answers are exact integers: the same on every
// instruction set, for every order of the records, and as NumPy computes them. Python says what
// they mean: cloister/tasks/clustering/lloyd_kernel.py, cloister/tasks/clipped.py and
// cloister/data/encoding.py; docs/proofs/kernel.md says why they are exact.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace cloister {

// A table of records; no number is larger than `one` either way.
struct Records {
  const int32_t* rows;  // n x d
  int64_t n;
  int d;
  int64_t one;
};

struct Centres {
  const int64_t* values;  // k x d
  int k;
};

// Records in an order that keeps neighbours together, and what is known of parts of it: a tree in
// which the nodes after `at` are 2 at + 1 and 2 at + 2, and those of the last level are leaves.
struct Ordered {
  int64_t n;
  int d, depth;
  int64_t one;
  std::unique_ptr<int32_t[]> rows;   // n x d, then room for a panel and a vector
  std::vector<int64_t> first, last;  // rows of each node
  std::vector<int32_t> low, high;    // nodes x d: the least box around them
  std::vector<int64_t> sums;         // nodes x d

  Records records() const { return {rows.get(), n, d, one}; }
};

// Floating-point scores of centres, and how far they may be off.
struct Scoring {
  int d, k;
  int block, blocks;      // centres are scored `block` at a time
  const float* weights;   // blocks x (d + 1) x block: |c|^2 / 2 + shift, then -c
  const double* centres;  // d x k
  const double* norms;    // |c|^2 of each
  int32_t label_bits;     // the low bits of a score, which hold its label
  float margin, hidden;   // the label is certain if second > least + margin + hidden * second
  bool bounded;           // records beyond a radius get the label k
  bool relative;          // the radius is around the nearest centre, or around zero
  int64_t radius_squared;
  float limit, limit_margin;
};

// Sums of rows by label, small enough for int32; some of them in four copies.
struct Rows {
  int d, stride, labels, replicas;
  uint32_t* sums;    // replicas x labels x stride
  uint32_t* counts;  // 4 x labels
};

// Sums of products of rows by label: those of column i with column i and later ones.
struct Products {
  int d, stride;
  double* sums;  // labels x d x stride
  double* row;   // room for one
};

// How differences to centres are clipped.
struct Clipping {
  int d, k;
  const double* centres;  // d x k
  const double* radii;
  double unit;
};

// Squared distances of records to their nearest centre and to the second nearest, whose label is
// their own where there is no other.
struct Others {
  int d, k;
  const double* centres;  // d x k
  double *own, *other;    // of each record, whole panels
  int64_t* labels;
};

// The rules of cells, those of a row again and again, so that one loop serves all columns.
struct Cells {
  int d, rows;
  const double *low, *high, *centre, *factor, *known;
  const int64_t *integer, *boolean;  // all bits, or none
  bool typed;                        // some column is one of them
  int32_t one;
};

// A column of floats, `step` bytes apart.
struct Column {
  const char* first;
  int64_t step;
  bool narrow;  // float32, or else float64
};

// What one instruction set does. Behind the last row there is room for a vector.
//
// Only these functions are compiled for more than the least machine. They use no template of the
// standard library: a linker keeps one copy of each, maybe one that this machine cannot run.
struct Lanes {
  const char* name;
  int width;  // of a vector, in int32
  int most;   // centres to score at a time
  // Labels records, whole panels of two vectors, and says whether some labels are in doubt. Writes
  // the records as floats to `columns`: panels x d x panel.
  bool (*label)(const Scoring&, const int32_t* rows, int count, float* columns, int32_t* labels,
                int32_t* doubtful);
  // Labels one record exactly; `scores` has room for k.
  int (*resolve)(const Scoring&, const int32_t* row, double* scores);
  void (*add)(const Rows&, const int32_t* rows, const int32_t* labels, int count);
  // Adds columns that `label` made to sums, k x (d + 1) x width, and counts; leaves out the label
  // k. For d <= 4; null where it would not be faster than `add`.
  void (*add_columns)(int d, int k, const float* columns, const int32_t* labels, int count,
                      int32_t* sums);
  // Writes clipped differences, row by row, from columns that `label` made.
  void (*clip)(const Clipping&, const float* columns, const int32_t* labels, int count,
               double* space, int32_t* clipped);
  void (*add_products)(const Products&, const int32_t* rows, const int32_t* labels, int count);
  // Writes distances to the centre that `labels` names, and the least to another, the first of
  // several, with its label.
  void (*others)(const Others&, const float* columns, const int32_t* labels, int count);
  // Rounds cells to the grid, and says whether all were in range and of their type.
  bool (*round_cells)(const Cells&, const char* found, bool narrow, int count, int32_t* steps);
};

namespace base {
extern const Lanes lanes;
}
namespace avx2 {
extern const Lanes lanes;
}
namespace avx512 {
extern const Lanes lanes;
}

// Returns those that this machine can run, the best first, and null after the last.
const Lanes* const* available();

// Whether floats hold all distances exactly. Where they do not, the functions below must not be
// asked.
bool exact(const Records&, const Centres&);

// Adds to `sums`, k x (d + 1), the records nearest to each centre and, last, their numbers.
void sum_near(const Lanes&, const Records&, const Centres&, int64_t radius_squared, bool relative,
              int64_t* sums);

void sum_near(const Lanes&, const Ordered&, const Centres&, int64_t radius_squared, bool relative,
              int64_t* sums);

// Adds differences clipped to `radii`, in steps of 1 / unit, and the numbers of records.
void sum_clipped(const Lanes&, const Records&, const Centres&, const int64_t* radii, int64_t unit,
                 int64_t* sums);

// Adds the same, and the products of differences clipped to `reach` in steps of 1 / fine: for each
// centre those of columns i <= j, row by row.
void sum_moments(const Lanes&, const Records&, const Centres&, const int64_t* radii, int64_t unit,
                 const int64_t* reach, int64_t fine, int64_t* sums, int64_t* moments);

// Copies tables of the same columns, one after another, into an order; which one, the sums above
// do not depend on.
Ordered ordered(const std::vector<Records>& parts);

// Writes the nearest centre of each record, the first of several.
void nearest(const Lanes&, const Records&, const Centres&, int64_t* labels);

// Writes the two nearest centres of each record, then the squared distances to them; 4 x n. A single
// centre is both.
void two_nearest(const Lanes&, const Records&, const Centres&, int64_t* found);

// Rounds n rows of columns to the grid. Flags, of zeros, become what is wrong with each cell.
void encode(const Lanes&, const Column* columns, int64_t n, const Cells&, int32_t* steps,
            uint8_t* flags);

}  // namespace cloister
