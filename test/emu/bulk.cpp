/* bulk.cpp - emulates the functions of core/ptx.cuh for TMA's stores, and the two proxies through which shared memory
 * is accessed.
 *
 * The asynchronous proxy (TMA's stores, wgmma) has its own view of shared memory. A TMA load writes both views; what
 * threads write reaches the asynchronous view only through a fence.proxy.async. An asynchronous read of bytes that no
 * fence has passed on yet is refused. The race checker needs no second view. It knows who wrote each byte, and demands
 * that this thread made the fence (race_visible). A store reads its tile at any time until a wait_group.read, and
 * writes the matrix at any time until a wait_group or the block's end.
 */
#include "engine.h"

namespace emu {

/* --- the asynchronous proxy's view -------------------------------------------------------------------------------- */

char *async_view(size_t at) {
    if (!engine.here->async) engine.here->async = (char *)malloc(ARENA_BYTES);
    /* Fills the asynchronous proxy's view of shared memory with 0xff bytes: NaN in every floating-point type. */
    if (!engine.here->async_used) memset(engine.here->async, 0xff, ARENA_BYTES);
    engine.here->async_used = true;
    return engine.here->async + at;
}
void fence_proxy_async() {
    race_proxy_fence();
    if (watching()) return;
    char *view = async_view(0);
    memcpy(view + engine.here->dynamic_at, engine.here->arena + engine.here->dynamic_at, engine.launch->shared_bytes);
    for (int i = 0; i < engine.here->static_count; i++)
        memcpy(view + engine.here->statics[i].at, engine.here->arena + engine.here->statics[i].at, engine.here->statics[i].bytes);
}
void async_may_read(const char *p, size_t n, const char *what, const char *file, int line) {
    if (!watching() && memcmp(p, async_view((size_t)(p - engine.here->arena)), n))
        fail_at(file, line, "%s: shared memory was written, and no fence.proxy.async made it visible to the asynchronous proxy", what);
}

/* --- TMA stores --------------------------------------------------------------------------------------------------- */

/* Calls f(shared, global, bytes) for each contiguous part of the tile of a TMA store. global is NULL outside of the
 * matrix. */
template <class F> static void each_place(const BulkStore &s, F f) {
    uint32_t at = shared_offset(s.shared, s.map.box_columns * s.map.box_rows * s.map.element_bytes, "TMA", s.file, s.line);
    each_part(s.map, at, s.column, s.row, [&](uint32_t offset, char *to, size_t n) { f(engine.here->arena + offset, to, n); });
}

static void read_tile(BulkStore &s) {
    size_t next = 0;
    each_place(s, [&](const char *p, const char *to, size_t n) {
        if (to) race_async_read(p, n, s.thread, s.stamp, s.file, s.line);
        if (memcmp(p, &s.tile[next], n))
            fail_at(s.file, s.line, "TMA store: its tile was changed before a cp.async.bulk.wait_group.read covered it");
        next += n;
    });
    s.was_read = true;
}

template <class T, float to_f32(T), T from_f32(float)> static void add_as(char *to, const char *by) {
    T x, y;
    memcpy(&x, to, sizeof x);
    memcpy(&y, by, sizeof y);
    x = from_f32(to_f32(x) + to_f32(y));
    memcpy(to, &x, sizeof x);
}
static float itself(float x) { return x; }
static void  add(char *to, const char *by, EmuElement type, const BulkStore &s) {
    if (type == ELEMENT_F32) add_as<float, itself, itself>(to, by);
    else if (type == ELEMENT_BF16) add_as<__nv_bfloat16, __bfloat162float, __float2bfloat16>(to, by);
    else if (type == ELEMENT_F16) add_as<__half, __half2float, __float2half>(to, by);
    else fail_at(s.file, s.line, "TMA reduce-add: not of 8-bit elements");
}
static void write_matrix(BulkStore &s, uint64_t stamp) {
    if (s.was_written) return;
    size_t next = 0;
    each_place(s, [&](const char *, char *to, size_t n) {
        if (to) race_bulk_write(to, n, s.add, s.thread, stamp, s.file, s.line);
        for (size_t i = 0; to && s.add && i < n; i += s.map.element_bytes) add(to + i, &s.tile[next + i], s.map.type, s);
        if (to && !s.add) memcpy(to, &s.tile[next], n);
        next += n;
    });
    s.was_written = true;
}

void tma_store_2d(const EmuTensorMap *map, const void *shared, int column, int row, bool add, const char *file, int line) {
    tma_check(shared, *map, file, line);
    BulkStore s = {*map, shared, column, row, add, false, false, current->index, race_stamp(), {}, file, line};
    each_place(s, [&](const char *p, const char *to, size_t n) {
        if (to) {
            async_may_read(p, n, "TMA store", file, line);
            race_visible(p, n, current->warp, current->index, file, line);
        }
        s.tile.insert(s.tile.end(), p, p + n);
    });
    if (settings.async_early) write_matrix(s, s.stamp);
    current->is_async = true;
    if (current->stores.empty()) current->stores.emplace_back();
    current->stores.back().push_back(std::move(s));
}
void bulk_commit() {
    current->is_async = true;
    if (current->stores.empty()) current->stores.emplace_back();
    bool now = settings.schedule == RANDOM && engine.random() % 2;
    for (BulkStore &s : current->stores.back())
        if (now) write_matrix(s, s.stamp);
    current->stores.emplace_back();
}
void bulk_wait(int pending, bool read) {
    Groups<BulkStore> &groups = current->stores;
    for (int i = 0; i < (int)groups.size() - 1 - pending; i++)
        for (BulkStore &s : groups[(size_t)i]) {
            if (!s.was_read) read_tile(s);
            if (!read) write_matrix(s, race_stamp());
        }
    while (!read && (int)groups.size() - 1 > pending) groups.pop_front();
}

bool bulk_unread(const Fiber &f) {
    for (const auto &group : f.stores)
        for (const BulkStore &s : group)
            if (!s.was_read) return true;
    return false;
}
void bulk_finish_block() {
    for (int i = 0; i < engine.threads; i++) {
        if (!engine.fibers[i].is_async) continue;
        InBlock there(engine.fibers[i].rank);
        for (auto &group : engine.fibers[i].stores)
            for (BulkStore &s : group) write_matrix(s, s.stamp);
        engine.fibers[i].stores.clear();
    }
}

}  // namespace emu
