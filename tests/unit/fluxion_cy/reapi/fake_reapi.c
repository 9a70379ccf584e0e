/* A library with the symbols of Fluxion's C API. It writes down every call and gives the answers that a test sets.
 *
 * fake_fail("function rc errno"): how the next calls of a function end. fake_text: the error text that a failure leaves.
 * fake_log: one line a call, arguments separated by tabs. fake_given: what was allocated for the caller, in order.
 * It knows nothing of Fluxion's own code: only its declarations. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 4096

struct context {
    int number;
    bool ready;
};

static char *log_text;
static size_t log_size;
static char static_text[1024]; /* of the process, as the error text of the real one */
static void *given[MOST];
static int given_count, contexts, inside, most_inside, alive;
static unsigned nap;

static struct {
    char function[32];
    int rc, code;
} wanted[16];
static int wanted_count;
static char next_text[512] = "something went wrong\n  in two lines\n";
static char next_R[1 << 16] = "{\"graph\":{\"nodes\":[],\"edges\":[]}}";
static bool no_R, next_flag = true, next_reserved;
static int64_t next_at;

static void note (const char *format, ...) __attribute__ ((format (printf, 1, 2)));

#include <stdarg.h>
static void note (const char *format, ...)
{
    char line[1 << 16];
    va_list arguments;
    va_start (arguments, format);
    int length = vsnprintf (line, sizeof line, format, arguments);
    va_end (arguments);
    if (length >= (int)sizeof line)
        length = sizeof line - 1;
    log_text = realloc (log_text, log_size + length + 2);
    memcpy (log_text + log_size, line, length);
    log_size += length;
    log_text[log_size++] = '\n';
    log_text[log_size] = 0;
}

static char *give (const char *text)
{
    char *copy = strdup (text);
    if (given_count < MOST)
        given[given_count++] = copy;
    return copy;
}

/* ---- what the tests say and ask ---- */

void fake_reset (void)
{
    free (log_text);
    log_text = NULL;
    log_size = 0;
    given_count = wanted_count = most_inside = 0;
    nap = 0;
    no_R = next_reserved = false;
    next_flag = true;
    next_at = 0;
    static_text[0] = 0;
    strcpy (next_R, "{\"graph\":{\"nodes\":[],\"edges\":[]}}");
    strcpy (next_text, "something went wrong\n  in two lines\n");
}

void fake_fail (const char *function, int rc, int code)
{
    snprintf (wanted[wanted_count].function, sizeof wanted[0].function, "%s", function);
    wanted[wanted_count].rc = rc;
    wanted[wanted_count++].code = code;
}

void fake_forget (void)
{
    wanted_count = 0;
}

void fake_text (const char *text)
{
    snprintf (next_text, sizeof next_text, "%s", text);
}

void fake_R (const char *text)
{
    no_R = !text;
    if (text)
        snprintf (next_R, sizeof next_R, "%s", text);
}

void fake_answer (int64_t at, bool reserved, bool flag, unsigned microseconds)
{
    next_at = at;
    next_reserved = reserved;
    next_flag = flag;
    nap = microseconds;
}

const char *fake_log (void)
{
    return log_text ? log_text : "";
}

int fake_given (void **out)
{
    memcpy (out, given, given_count * sizeof *given);
    return given_count;
}

int fake_most_inside (void)
{
    return most_inside;
}

int fake_alive (void)
{
    return alive;
}

static int ends (const char *function)
{
    int now = __sync_add_and_fetch (&inside, 1);
    if (now > most_inside)
        most_inside = now;
    if (nap)
        usleep (nap);
    int rc = 0;
    for (int i = 0; i < wanted_count; i++) {
        if (strcmp (wanted[i].function, function) == 0) {
            rc = wanted[i].rc;
            if (rc) {
                strncat (static_text, next_text, sizeof static_text - strlen (static_text) - 1);
                if (wanted[i].code)
                    errno = wanted[i].code;
            }
        }
    }
    __sync_sub_and_fetch (&inside, 1);
    return rc;
}

/* ---- the C API ---- */

struct context *reapi_cli_new (void)
{
    if (ends ("new")) {
        note ("new");
        return NULL;
    }
    struct context *context = calloc (1, sizeof *context);
    context->number = ++contexts;
    alive++;
    note ("new");
    return context;
}

#ifndef WITHOUT_CLONE
struct context *reapi_cli_clone (struct context *context)
{
    note ("clone");
    if (ends ("clone"))
        return NULL;
    struct context *copy = calloc (1, sizeof *copy);
    *copy = *context;
    copy->number = ++contexts;
    alive++;
    return copy;
}
#endif

void reapi_cli_destroy (struct context *context)
{
    note ("destroy");
    alive--;
    free (context);
}

int reapi_cli_initialize (struct context *context, const char *graph, const char *options)
{
    note ("initialize\t%s\t%s", graph, options);
    int rc = ends ("initialize");
    context->ready = rc == 0;
    return rc;
}

int reapi_cli_match_with_jobid (struct context *context, int op, const char *jobspec, uint64_t jobid, bool *reserved,
                                char **R, int64_t *at, double *overhead)
{
    note ("match_with_jobid\t%d\t%s\t%llu", op, jobspec, (unsigned long long)jobid);
    int rc = ends ("match_with_jobid");
    *at = next_at;
    *overhead = 0.25;
    if (rc == 0) {
        *reserved = next_reserved;
        *R = no_R ? NULL : give (next_R);
    }
    return rc;
}

int reapi_cli_match_satisfy (struct context *context, const char *jobspec, bool *satisfied, double *overhead)
{
    note ("match_satisfy\t%s", jobspec);
    int rc = ends ("match_satisfy");
    *satisfied = rc == 0 && next_flag;
    *overhead = 0.25;
    return rc;
}

int reapi_cli_update_allocate (struct context *context, const uint64_t jobid, const char *R, int64_t *at,
                               double *overhead, const char **out)
{
    note ("update_allocate\t%llu\t%s", (unsigned long long)jobid, R);
    int rc = ends ("update_allocate");
    if (rc == 0) {
        *at = next_at;
        *overhead = 0.25;
        *out = no_R ? NULL : give (next_R);
    }
    return rc;
}

int reapi_cli_cancel (struct context *context, const uint64_t jobid, bool noent_ok)
{
    note ("cancel\t%llu\t%d", (unsigned long long)jobid, noent_ok);
    return ends ("cancel");
}

int reapi_cli_partial_cancel (struct context *context, const uint64_t jobid, const char *R, bool noent_ok, bool *full)
{
    note ("partial_cancel\t%llu\t%s\t%d", (unsigned long long)jobid, R, noent_ok);
    int rc = ends ("partial_cancel");
    if (rc == 0)
        *full = next_flag;
    return rc;
}

int reapi_cli_find (struct context *context, const char *criteria, const char *format, char **R)
{
    note ("find\t%s\t%s", criteria, format);
    int rc = ends ("find");
    if (rc == 0)
        *R = no_R ? NULL : give (next_R);
    return rc;
}

int reapi_cli_add_subgraph (struct context *context, const char *graph)
{
    note ("add_subgraph\t%s", graph);
    return ends ("add_subgraph");
}

int reapi_cli_remove_subgraph (struct context *context, const char *path)
{
    note ("remove_subgraph\t%s", path);
    return ends ("remove_subgraph");
}

int reapi_cli_set_status (struct context *context, const char *path, int status)
{
    note ("set_status\t%s\t%d", path, status);
    return ends ("set_status");
}

int reapi_cli_get_status (struct context *context, const char *path, int *status)
{
    note ("get_status\t%s", path);
    int rc = ends ("get_status");
    if (rc == 0)
        *status = next_flag ? 0 : 1;
    return rc;
}

int reapi_cli_set_rank_status (struct context *context, const char *ranks, int status)
{
    note ("set_rank_status\t%s\t%d", ranks, status);
    return ends ("set_rank_status");
}

int reapi_cli_get_rank_status (struct context *context, const char *rank, int *status)
{
    note ("get_rank_status\t%s", rank);
    int rc = ends ("get_rank_status");
    if (rc == 0)
        *status = next_flag ? 0 : 1;
    return rc;
}

const char *reapi_cli_get_err_msg (struct context *context)
{
    return give (static_text);
}

void reapi_cli_clear_err_msg (struct context *context)
{
    static_text[0] = 0;
}
