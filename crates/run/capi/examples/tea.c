/* Sets a key of a cell and gets it, by the address of one of the cell's backends:
 *     cc tea.c -ltailwater -o tea && ./tea unix:/srv/tiles.sock */

#include <stdio.h>
#include <string.h>
#include <tailwater.h>

static TailwaterBytes text(const char *text) {
    TailwaterBytes bytes = {(const uint8_t *)text, strlen(text)};
    return bytes;
}

/* Waits for an operation that has to be done. */
static int is_done(TailwaterOperation *operation, const char *what) {
    if (tailwater_operation_wait(operation, -1) == TailwaterStatus_Ok)
        return 1;
    fprintf(stderr, "%s: %s\n", what, tailwater_operation_error(operation));
    tailwater_operation_free(operation);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 2 || tailwater_abi_version() != TAILWATER_ABI_VERSION) {
        fprintf(stderr, "usage: tea ADDRESS, with version %d of the library's ABI\n", TAILWATER_ABI_VERSION);
        return 2;
    }
    const char *seed = arguments[1];
    TailwaterOperation *opening = tailwater_cell_at(&seed, 1, NULL, NULL, 0);
    if (!is_done(opening, "open"))
        return 1;
    TailwaterCell *cell = tailwater_operation_cell(opening);
    tailwater_operation_free(opening);

    TailwaterItem item = {text("tea"), text("Darjeeling"), 60000};
    TailwaterOperation *setting = tailwater_cell_set(cell, &item, 1, NULL, 0);
    if (!is_done(setting, "set"))
        return 1;
    size_t changes;
    const TailwaterChange *change = tailwater_operation_changes(setting, &changes);
    if (changes != 1 || change->changed != TailwaterChanged_Applied) {
        fprintf(stderr, "set: %s\n", change->why);
        return 1;
    }
    tailwater_operation_free(setting);

    TailwaterOperation *getting = tailwater_cell_get(cell, &item.key, 1, TailwaterLookupMode_Consistent, NULL, 0);
    if (!is_done(getting, "get"))
        return 1;
    size_t lookups;
    const TailwaterLookup *lookup = tailwater_operation_lookups(getting, &lookups);
    if (lookups == 1 && lookup->found == TailwaterFound_Hit)
        printf("tea is %.*s\n", (int)lookup->value.len, (const char *)lookup->value.data);
    tailwater_operation_free(getting);
    tailwater_cell_free(cell);
    return 0;
}
