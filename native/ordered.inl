// Records in the order of a tree of boxes, and sums that open few of its leaves. Part of kernel.cpp.

constexpr int64_t LEAF = 256;   // records, about
constexpr int SAMPLED = 8;      // of them, from which cuts are made
constexpr int MOST_DEPTH = 16;  // so that 16 bits number leaves
constexpr int AT_ONCE = 16;     // records that go down the tree side by side
constexpr int MOST_PANEL = 32;  // records
constexpr int MOST_WIDTH = 16;  // numbers

// Puts records into an order that is a function of the records alone.
class Order {
 public:
  explicit Order(const std::vector<Records>& parts) : parts_(parts) {
    made_.n = 0, made_.d = parts.at(0).d, made_.depth = 0, made_.one = 1;
    for (const Records& part : parts) made_.n += part.n;
    while (made_.depth < MOST_DEPTH && LEAF << made_.depth < made_.n) made_.depth++;
    nodes_ = (int64_t(2) << made_.depth) - 1, leaves_ = nodes_ / 2;
    cut();
    place();
    look();
  }

  Ordered made() { return std::move(made_); }

 private:
  struct Cut {
    int32_t axis, at;  // records below `at` go left
  };
  using Sample = std::vector<const int32_t*>;

  void cut() {
    cuts_.assign(leaves_, Cut{0, 0});
    const int64_t step = std::max<int64_t>(1, LEAF / SAMPLED);
    Sample sample;
    for (const Records& part : parts_)
      for (int64_t i = 0; i < part.n; i += step) sample.push_back(part.rows + i * part.d);
    cut(0, sample.begin(), sample.end());
  }

  void cut(int64_t at, Sample::iterator begin, Sample::iterator end) {
    if (at >= leaves_ || begin == end) return;
    int axis = 0;
    int64_t widest = -1, least = 0;
    for (int i = 0; i < made_.d; i++) {
      int64_t low = INT32_MAX, high = INT32_MIN;
      for (auto row = begin; row != end; row++) {
        low = std::min<int64_t>(low, (*row)[i]);
        high = std::max<int64_t>(high, (*row)[i]);
      }
      if (high - low > widest) axis = i, widest = high - low, least = low;
    }
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, [axis](auto a, auto b) { return a[axis] < b[axis]; });
    // above the least, so that the many equal numbers of a category do not all go right
    const auto value = int32_t(std::max<int64_t>((*middle)[axis], least + (widest > 0)));
    cuts_[at] = {axis, value};
    const auto right = std::partition(begin, end, [=](auto row) { return row[axis] < value; });
    cut(2 * at + 1, begin, right);
    cut(2 * at + 2, right, end);
  }

  // Copies the records of each leaf to one place.
  void place() {
    const int d = made_.d;
    std::vector<uint16_t> leaf_of(made_.n);
    std::vector<int64_t> next(leaves_ + 2, 0);
    int64_t done = 0;
    for (const Records& part : parts_)
      for (int64_t i = 0; i < part.n; i += AT_ONCE) {
        const int count = int(std::min<int64_t>(AT_ONCE, part.n - i));
        int64_t at[AT_ONCE] = {};
        for (int level = 0; level < made_.depth; level++)
          for (int q = 0; q < count; q++) {
            const Cut& cut = cuts_[at[q]];
            at[q] = 2 * at[q] + 1 + (part.rows[(i + q) * d + cut.axis] >= cut.at);
          }
        for (int q = 0; q < count; q++) {
          leaf_of[done++] = uint16_t(at[q] - leaves_);
          next[at[q] - leaves_ + 1]++;
        }
      }
    for (int64_t leaf = 0; leaf <= leaves_; leaf++) next[leaf + 1] += next[leaf];
    made_.first.resize(nodes_), made_.last.resize(nodes_);
    for (int64_t leaf = 0; leaf <= leaves_; leaf++)
      made_.first[leaves_ + leaf] = next[leaf], made_.last[leaves_ + leaf] = next[leaf + 1];
    const int64_t room = int64_t(MOST_PANEL) * d + MOST_WIDTH;
    made_.rows.reset(new int32_t[made_.n * d + room]);
    std::fill_n(made_.rows.get() + made_.n * d, room, 0);
    done = 0;
    for (const Records& part : parts_)
      for (int64_t i = 0; i < part.n; i++)
        std::copy_n(part.rows + i * d, d, made_.rows.get() + next[leaf_of[done++]]++ * d);
  }

  // Finds box and sum of each node, of leaves first.
  void look() {
    const int d = made_.d;
    made_.low.assign(nodes_ * d, INT32_MAX), made_.high.assign(nodes_ * d, INT32_MIN);
    made_.sums.assign(nodes_ * d, 0);
    for (int64_t at = nodes_ - 1; at >= 0; at--) {
      int32_t *low = &made_.low[at * d], *high = &made_.high[at * d];
      int64_t* sums = &made_.sums[at * d];
      if (at >= leaves_) {
        const int32_t* row = made_.rows.get() + made_.first[at] * d;
        for (int64_t t = made_.first[at]; t < made_.last[at]; t++, row += d)
          for (int i = 0; i < d; i++) {
            low[i] = std::min(low[i], row[i]);
            high[i] = std::max(high[i], row[i]);
            sums[i] += row[i];
          }
        continue;
      }
      made_.first[at] = made_.first[2 * at + 1], made_.last[at] = made_.last[2 * at + 2];
      for (int64_t child : {2 * at + 1, 2 * at + 2})
        for (int i = 0; i < d; i++) {
          low[i] = std::min(low[i], made_.low[child * d + i]);
          high[i] = std::max(high[i], made_.high[child * d + i]);
          sums[i] += made_.sums[child * d + i];
        }
    }
    for (int i = 0; i < d && made_.n > 0; i++)
      made_.one = std::max<int64_t>({made_.one, made_.high[i], -int64_t(made_.low[i])});
  }

  const std::vector<Records>& parts_;
  Ordered made_;
  int64_t nodes_, leaves_;  // the first leaf has the number of leaves, less one, before it
  std::vector<Cut> cuts_;
};

// Goes down the tree with the centres that may be nearest to some point of a box. All is in int64,
// which `exact` makes large enough: docs/proofs/kernel.md, section 7.
class Leaves {
 public:
  struct Near {
    int64_t radius_squared;  // beyond which records are left out
    bool relative;
    int64_t* sums;  // to which those of whole nodes are added
  };

  Leaves(const Ordered& ordered, const Centres& centres, Labels& labels, Near near)
      : of_(ordered), centres_(centres), labels_(labels), near_(near), zero_(ordered.d, 0) {
    names_.resize(size_t(ordered.depth + 2) * centres.k);
    for (int j = 0; j < centres.k; j++) names_[j] = j;
  }

  // Calls `use` as Labels does, for the records of leaves that must be looked at one by one.
  template <class Use>
  void each_tile(Use use) {
    open(0, names_.data(), centres_.k, use);
  }

 private:
  template <class Use>
  void open(int64_t at, int32_t* names, int count, Use& use) {
    const int d = of_.d;
    const int64_t first = of_.first[at], last = of_.last[at];
    if (first == last) return;
    const int32_t *low = &of_.low[at * d], *high = &of_.high[at * d];
    int32_t* left = names + centres_.k;
    count = candidates(low, high, names, count, left);
    if (count == 1 || !near_.relative) {
      const int64_t* origin = near_.relative ? centre(*left) : zero_.data();
      int64_t near = 0, far = 0;  // squared distances of the box
      for (int i = 0; i < d; i++) {
        const int64_t below = low[i] - origin[i], above = origin[i] - high[i];
        const int64_t out = std::max<int64_t>({0, below, above}), in = std::min(below, above);
        near += out * out, far += in * in;
      }
      if (near > near_.radius_squared) return;
      if (count == 1 && far <= near_.radius_squared) {
        int64_t* sums = near_.sums + int64_t(*left) * (d + 1);
        for (int i = 0; i < d; i++) sums[i] += of_.sums[at * d + i];
        sums[d] += last - first;
        return;
      }
    }
    if (2 * at + 1 < int64_t(of_.first.size())) {
      open(2 * at + 1, left, count, use);
      return open(2 * at + 2, left, count, use);
    }
    labels_.among(left, count);
    for (int64_t t = first; t < last; t += labels_.tile())
      labels_.label(of_.rows.get() + t * d, int(std::min<int64_t>(labels_.tile(), last - t)), use);
  }

  // Writes those of some centres that are the first nearest one of a point of a box, and maybe
  // more; at least the one that is closest to its middle.
  int candidates(const int32_t* low, const int32_t* high, const int32_t* names, int count,
                 int32_t* left) const {
    const int d = of_.d;
    int close = names[0];
    for (int64_t z = 0, least = INT64_MAX; z < count && count > 1; z++) {
      const int64_t* c = centre(names[z]);
      int64_t squared = 0;
      for (int i = 0; i < d; i++) {
        const int64_t twice = 2 * c[i] - low[i] - high[i];
        squared += twice * twice;
      }
      if (squared < least) least = squared, close = names[z];
    }
    const int64_t* b = centre(close);
    int kept = 0;
    for (int z = 0; z < count; z++) {
      const int64_t* a = centre(names[z]);
      int64_t nearer = 0;  // by how much, at most: |x - b|^2 - |x - a|^2 at one corner
      for (int i = 0; i < d; i++)
        nearer += (a[i] - b[i]) * (2 * int64_t(a[i] > b[i] ? high[i] : low[i]) - a[i] - b[i]);
      if (nearer > 0 || (nearer == 0 && names[z] <= close)) left[kept++] = names[z];
    }
    return kept;
  }

  const int64_t* centre(int name) const { return centres_.values + int64_t(name) * of_.d; }

  const Ordered& of_;
  const Centres centres_;
  Labels& labels_;
  const Near near_;
  std::vector<int64_t> zero_;
  std::vector<int32_t> names_;  // of candidates, level by level
};
