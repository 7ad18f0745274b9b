/* Latency, bandwidth, bandwidth both ways, and message rate of pairs of ranks, told in the columns of
 * the OSU micro-benchmarks, so that scripts that read those read this. The exchanges are those of
 * exchange.h. See `usage` below, or perf --help. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"

static const char usage[] =
    "Usage: mpirun -n 2 perf TEST [options]\n"
    "\n"
    "  latency   half the round trip of a ping-pong\n"
    "  bw        a window of messages one way, answered by an empty one\n"
    "  bibw      such windows both ways at once; the sum is told\n"
    "  mbw_mr    bw of several pairs at once (ranks 0.. send to ranks PAIRS..): MB/s and messages per second\n"
    "\n"
    "  -m, --sizes MIN:MAX   bytes, powers of two from MIN on; k and m may follow (default 1:4m); one number is MAX\n"
    "  -i, --iterations N    so many round trips or windows of each size (default: as many as fit into --seconds)\n"
    "      --seconds F       time for each size (default 0.1)\n"
    "  -x, --warmup N        so many more before, which do not count (a few always go before)\n"
    "  -W, --window N        messages of a window (default 64)\n"
    "  -p, --pairs N         pairs of mbw_mr (default: half of the ranks)\n"
    "      --fresh           the sender rewrites each message just before it is sent, which is not timed\n"
    "  -c, --validate        the receiver compares every byte, which is not timed (and --fresh)\n"
    "      --json            one JSON object for each size\n"
    "  -h, --help\n"
    "\n"
    "Called osu_latency, osu_bw, osu_bibw or osu_mbw_mr (a link), it is that test. Columns and headings are those of\n"
    "OSU 7: microseconds, 10^6 bytes per second; the average of all iterations, and with --validate a word: Pass (a wrong\n"
    "byte ends the program).\n"
    "JSON: size and latency_us, bandwidth_mbs, rate_mps, which are the median of five batches; the same with _mean for the\n"
    "average and with _best for the best batch; iterations. Without --fresh all messages of a window share one buffer.\n";

enum test { LATENCY, BANDWIDTH, BOTH_WAYS, RATE, TESTS };

static const struct {
    const char *name, *also, *title, *column;
} tests[TESTS] = {
    {"latency", "osu_latency", "Latency Test", "Avg Latency(us)"},
    {"bw", "osu_bw", "Bandwidth Test", "Bandwidth (MB/s)"},
    {"bibw", "osu_bibw", "Bi-Directional Bandwidth Test", "Bandwidth (MB/s)"},
    {"mbw_mr", "osu_mbw_mr", "Multiple Bandwidth / Message Rate Test", "MB/s"},
};

struct options {
    enum test test;
    size_t min, max;
    long iterations, warmup;
    int window, pairs, fresh, validate, json;
    double seconds;
};

static int rank, ranks;
static struct options opt = {TESTS, 1, 4 << 20, 0, 0, 64, 0, 0, 0, 0, 0.1};

static int is(const char *word, const char *brief, const char *full) {
    return strcmp(word, brief) == 0 || strcmp(word, full) == 0;
}

static void refuse(const char *what, const char *word) {
    char text[200];
    snprintf(text, sizeof text, "%s: %s (see perf --help)", word, what);
    die("perf", text);
}

static double number(const char *word, char **end) {
    double value = strtod(word, end);
    if (**end == 'k' || **end == 'K') value *= 1 << 10, ++*end;
    else if (**end == 'm' || **end == 'M') value *= 1 << 20, ++*end;
    return value;
}

/* The value of an option: a number of at least `least`. */
static double value(int argc, char **argv, int *i, double least) {
    char *end;
    if (*i + 1 == argc) refuse("needs a value", argv[*i]);
    double found = number(argv[++*i], &end);
    if (end == argv[*i] || *end != '\0' || !(found >= least) || found > 1 << 30) refuse("no value that makes sense", argv[*i]);
    return found;
}

static void sizes(int argc, char **argv, int *i) {
    char *end;
    if (*i + 1 == argc) refuse("needs a value", argv[*i]);
    const char *word = argv[++*i];
    double first = number(word, &end), last = first;
    int bad = end == word;
    if (*end == ':') {
        const char *rest = end + 1;
        /* As OSU has it: "4:" and "4:8" are what they look like, "8" is the longest. */
        last = *rest == '\0' ? (double)opt.max : number(rest, &end);
        end = *rest == '\0' ? end + 1 : end;
    } else {
        first = (double)opt.min;
    }
    if (bad || *end != '\0' || first < 0 || last < first || last > 1 << 30) refuse("no range of sizes up to 1024m", word);
    opt.min = (size_t)first;
    opt.max = (size_t)last;
}

static enum test named(const char *word) {
    const char *slash = strrchr(word, '/');
    enum test test = LATENCY;
    word = slash ? slash + 1 : word;
    while (test < TESTS && !is(word, tests[test].name, tests[test].also)) test++;
    return test;
}

static void parse(int argc, char **argv) {
    opt.test = named(argv[0]);
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (named(word) != TESTS) opt.test = named(word);
        else if (is(word, "-m", "--sizes")) sizes(argc, argv, &i);
        else if (is(word, "-i", "--iterations")) opt.iterations = (long)value(argc, argv, &i, 1);
        else if (is(word, "-x", "--warmup")) opt.warmup = (long)value(argc, argv, &i, 0);
        else if (strcmp(word, "--seconds") == 0) opt.seconds = value(argc, argv, &i, 0);
        else if (is(word, "-W", "--window")) opt.window = (int)value(argc, argv, &i, 1);
        else if (is(word, "-p", "--pairs")) opt.pairs = (int)value(argc, argv, &i, 1);
        else if (strcmp(word, "--fresh") == 0) opt.fresh = 1;
        else if (is(word, "-c", "--validate")) opt.validate = opt.fresh = 1;
        else if (strcmp(word, "--json") == 0) opt.json = 1;
        else refuse("no such argument", word);
    }
    if (opt.test == TESTS) die("perf", "which test: latency, bw, bibw or mbw_mr? (see perf --help)");
    if (opt.test == RATE) {
        if (opt.pairs == 0) opt.pairs = ranks / 2;
        if (opt.pairs == 0 || opt.pairs * 2 > ranks) die("perf", "mbw_mr needs two ranks for each pair");
    } else if (ranks != 2) {
        die("perf", "needs exactly two ranks (mbw_mr takes more)");
    }
}

/* All pairs start together; the mean of their clocks, as OSU has it. On rank 0. */
static double pairs(struct exchange *x, size_t bytes, long turns) {
    double sum = 0, mine = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (x->peer >= 0) mine = stream(x, bytes, turns);
    if (!x->first) mine = 0;
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum / opt.pairs;
}

static void head(void) {
    printf("# rustmx MPI %s (columns of the OSU micro-benchmarks 7)\n# Datatype: MPI_BYTE.\n", tests[opt.test].title);
    if (opt.test == RATE) printf("# [ pairs: %d ] [ window size: %d ]\n", opt.pairs, opt.window);
    printf("# %-8s%18s", "Size", tests[opt.test].column);
    printf(opt.test == RATE ? "%18s" : "%s", opt.test == RATE ? "Messages/s" : "");
    printf(opt.validate ? "%18s\n" : "%s\n", opt.validate ? "Validation" : "");
    fflush(stdout);
}

/* A figure three times: the median's, the average's, the best's. */
static void figures(const char *name, const char *unit, double each, int divided, struct timing t) {
    const double seconds[] = {t.median, t.mean, t.best};
    const char *kinds[] = {"", "_mean", "_best"};
    for (int i = 0; i < 3; i++) {
        double figure = divided ? each / (seconds[i] > 0 ? seconds[i] : 1e-12) : each * seconds[i];
        printf(",\"%s%s_%s\":%.4f", name, kinds[i], unit, figure);
    }
}

static void tell(size_t bytes, struct timing t) {
    double messages = (double)opt.window * (opt.test == BOTH_WAYS ? 2 : opt.test == RATE ? opt.pairs : 1);
    double megabytes = messages * (double)bytes / 1e6, mean = t.mean > 0 ? t.mean : 1e-12;
    if (opt.json) {
        printf("{\"size\":%zu,\"iterations\":%ld", bytes, t.turns);
        if (opt.test == LATENCY) figures("latency", "us", 1e6 / 2, 0, t);
        else figures("bandwidth", "mbs", megabytes, 1, t);
        if (opt.test == RATE) figures("rate", "mps", messages, 1, t);
        printf("}\n");
    } else {
        printf("%-10zu%18.2f", bytes, opt.test == LATENCY ? mean * 1e6 / 2 : megabytes / mean);
        if (opt.test == RATE) printf("%18.2f", messages / mean);
        printf(opt.validate ? "%18s\n" : "%s\n", opt.validate ? "Pass" : "");
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (is(argv[i], "-h", "--help")) {
            fputs(usage, stdout);
            return 0;
        }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    parse(argc, argv);
    exchange_kind *const kinds[TESTS] = {ping_pong, stream, both_ways, pairs};
    int first = opt.test == RATE ? rank < opt.pairs : rank == 0, distance = opt.test == RATE ? opt.pairs : 1;
    int takes_part = rank < 2 * distance;
    struct exchange x = {.program = "perf", .peer = takes_part ? rank + (first ? distance : -distance) : -1, .first = first && takes_part,
                         .window = opt.window, .fresh = opt.fresh, .check = opt.validate};
    open_exchange(&x, opt.max);
    if (rank == 0 && !opt.json) head();
    for (size_t bytes = opt.min; bytes <= opt.max; bytes = bytes == 0 ? 1 : 2 * bytes) {
        if (opt.warmup) kinds[opt.test](&x, bytes, opt.warmup);
        struct timing t = measure(kinds[opt.test], &x, bytes, opt.seconds / BATCHES, opt.test == LATENCY ? 3 : 1, opt.iterations);
        if (rank == 0) tell(bytes, t);
    }
    close_exchange(&x);
    MPI_Finalize();
    return 0;
}
