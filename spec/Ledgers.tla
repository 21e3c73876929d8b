------------------------------ MODULE Ledgers ------------------------------
(***************************************************************************)
(* One replicated ledger, as crates/log/bookkeeper writes and recovers it: *)
(* a writer, bookies, recoverers, and metadata with compare-and-set.       *)
(*                                                                         *)
(* An entry is its number, from 1; the ledger is the entries 1 .. last.    *)
(* Requests arrive at any time, in any order, or never. So an actor that   *)
(* dies is one that takes no more steps, though its requests still arrive, *)
(* and a bookie that is down is one at which nothing arrives. What a       *)
(* bookie has it keeps: it syncs before it answers.                        *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Bookies,
    Recoverers,
    EnsembleSize,
    WriteQuorum,
    AckQuorum,
    EntriesMax,           \* entries that the writer sends
    WriterChangesMax,     \* changes of bookies by the writer
    RecoveryChangesMax,   \* by each recoverer, while it writes back
    ReadAheadMax          \* entries that a recoverer reads beyond the first that it has not found

VARIABLES
    meta,        \* [state, version, ensembles, last]; ensembles: [their first entries -> members]
    writer,      \* [version, ensembles, next, lac, closed]
    carried,     \* [entry -> the LAC in its packet]
    sent,        \* the writer's adds: a set of <<bookie, entry>>
    taken,       \* those that bookies have done; the writer may know of them
    stored,      \* copies: a set of <<bookie, entry>>
    fenced,      \* a set of bookies
    recovery     \* [Recoverers -> what each of them knows]

vars == <<meta, writer, carried, sent, taken, stored, fenced, recovery>>

Symmetry == Permutations(Bookies) \cup Permutations(Recoverers)

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
MaxOf(numbers) == CHOOSE n \in numbers : \A m \in numbers : m <= n

Entries == 1 .. EntriesMax
\* Recovery looks for one that was never sent, too.
Behind == EntriesMax + 1
Looked == 1 .. Behind

(***************************************************************************)
(* Ensembles. Members are pairs of a place and a bookie. Where each entry  *)
(* is on all bookies the places do not matter, and all are place 0.        *)
(***************************************************************************)

Striped == WriteQuorum < EnsembleSize
Places == IF Striped THEN 0 .. EnsembleSize - 1 ELSE {0}
BookiesOf(members) == {member[2] : member \in members}

PlacesOf(entry) == IF Striped THEN {(entry - 1 + i) % EnsembleSize : i \in 0 .. WriteQuorum - 1} ELSE {0}
InWriteSet(members, entry) == {member[2] : member \in {m \in members : m[1] \in PlacesOf(entry)}}

FirstMembers(bookies) == IF Striped
    THEN {{<<place, order[place]>> : place \in Places} :
            order \in {f \in [Places -> bookies] : \A p, q \in Places : f[p] = f[q] => p = q}}
    ELSE {{<<0, bookie>> : bookie \in members} : members \in {s \in SUBSET bookies : Cardinality(s) = EnsembleSize}}

EnsembleOf(ensembles, entry) == ensembles[MaxOf({first \in DOMAIN ensembles : first <= entry})]
FirstOfLast(ensembles) == MaxOf(DOMAIN ensembles)
LastEnsemble(ensembles) == ensembles[FirstOfLast(ensembles)]

\* The same, with these members from an entry on.
From(first, ensembles, members) ==
    [f \in {g \in DOMAIN ensembles : g < first} \cup {first} |-> IF f = first THEN members ELSE ensembles[f]]

\* Ensembles that got no entry are left out.
UpTo(last, ensembles) == [f \in {g \in DOMAIN ensembles : g <= Max(last, 1)} |-> ensembles[f]]

\* One member of the last ensemble replaced by a bookie that is not in it.
Replacements(ensembles) ==
    {(LastEnsemble(ensembles) \ {old}) \cup {<<old[1], new>>} :
        old \in LastEnsemble(ensembles), new \in Bookies \ BookiesOf(LastEnsemble(ensembles))}

WriteSet(ensembles, entry) == InWriteSet(EnsembleOf(ensembles, entry), entry)

Copies(ensembles, entry) == {bookie \in WriteSet(ensembles, entry) : <<bookie, entry>> \in stored}

Adds(ensembles, entries) == UNION {{<<bookie, e>> : bookie \in WriteSet(ensembles, e)} : e \in entries}

\* The LAC that a bookie tells: the one in the packet of its last entry.
Told(bookie) ==
    LET has == {entry \in Entries : <<bookie, entry>> \in stored}
    IN IF has = {} THEN 0 ELSE carried[MaxOf(has)]

(***************************************************************************)
(* The rules. spec/bugs/ledgers-*.cfg break them.                          *)
(***************************************************************************)

\* Bookies whose acknowledgements of an entry count.
Counted(entry) == {bookie \in WriteSet(writer.ensembles, entry) : <<bookie, entry>> \in taken}

\* How many of them acknowledge an entry.
Acks == AckQuorum

\* The first entry of the writer's new ensemble. It is settled when the change begins. Nothing is acknowledged from then
\* until the metadata are changed, so the two are one step.
FirstChanged == {writer.lac + 1}

\* What is sent after it: all that is not acknowledged.
Resent(ensembles) == Adds(ensembles, writer.lac + 1 .. writer.next - 1)

\* Whether these bookies leave no ack quorum of others in any write set.
Covers(members, bookies) ==
    \A entry \in Looked : Cardinality(InWriteSet(members, entry) \ bookies) < AckQuorum

\* Whether an ensemble is fenced when these bookies are.
IsFenced(members, bookies) == Covers(members, bookies)

\* Whether a reader knows the LAC when these bookies have told it theirs.
IsHeard(members, bookies) == Covers(members, bookies)

\* What a recovery makes of one more bookie's LAC.
Heard(lac, told) == Max(lac, told)

\* What a recovery's read leaves fenced.
FencedByRead(bookie) == {bookie}

\* Whether an entry can't have been acknowledged, by those that said that they do not have it.
IsAbsent(entry, absent) == Cardinality(absent) >= WriteQuorum - AckQuorum + 1

\* What a bookie may say of an entry that it does not have to whoever recovers.
MaySayAbsent(bookie, entry) == <<bookie, entry>> \notin stored

\* Whether an entry that a recovery found has been written back.
IsBack(ensembles, entry) == Cardinality(Copies(ensembles, entry)) >= AckQuorum

\* Whether metadata may be replaced by one who read this version.
IsUnchanged(version) == meta.version = version

\* The ensembles that a recovery closes the ledger with: with its own changes.
ClosedWith(one) == one.to

\* The last entry that a reader takes for committed when a bookie has answered it.
Committed(bookie) == Told(bookie)

(***************************************************************************)
(* The writer.                                                             *)
(***************************************************************************)

AppendEntry ==
    /\ writer.next <= EntriesMax
    /\ ~writer.closed
    /\ carried' = [carried EXCEPT ![writer.next] = writer.lac]
    /\ sent' = sent \cup Adds(writer.ensembles, {writer.next})
    /\ writer' = [writer EXCEPT !.next = @ + 1]
    /\ UNCHANGED <<meta, taken, stored, fenced, recovery>>

\* An add arrives. The answer is known to the writer, or still on its way.
Arrive == \E add \in sent \ taken :
    /\ add[1] \notin fenced
    /\ taken' = taken \cup {add}
    /\ stored' = stored \cup {add}
    /\ UNCHANGED <<meta, writer, carried, sent, fenced, recovery>>

Acknowledge ==
    /\ writer.lac + 1 < writer.next
    /\ Cardinality(Counted(writer.lac + 1)) >= Acks
    /\ writer' = [writer EXCEPT !.lac = @ + 1]
    /\ UNCHANGED <<meta, carried, sent, taken, stored, fenced, recovery>>

\* An add failed, or seems to have. Once others have changed the metadata the writer is fenced, and this fails for ever.
ChangeBookie == \E members \in Replacements(writer.ensembles), first \in FirstChanged :
    LET ensembles == From(first, writer.ensembles, members)
    IN /\ writer.version <= WriterChangesMax
       /\ writer.next > 1
       /\ meta.version = writer.version
       /\ meta' = [meta EXCEPT !.version = @ + 1, !.ensembles = ensembles]
       /\ writer' = [writer EXCEPT !.version = @ + 1, !.ensembles = ensembles]
       /\ sent' = sent \cup Resent(ensembles)
       /\ UNCHANGED <<carried, taken, stored, fenced, recovery>>

CloseByWriter ==
    /\ ~writer.closed
    /\ writer.lac + 1 = writer.next
    /\ meta.version = writer.version
    /\ meta' = [meta EXCEPT !.version = @ + 1, !.state = "closed", !.last = writer.lac,
                           !.ensembles = UpTo(writer.lac, @)]
    /\ writer' = [writer EXCEPT !.closed = TRUE]
    /\ UNCHANGED <<carried, sent, taken, stored, fenced, recovery>>

(***************************************************************************)
(* Recovery.                                                               *)
(***************************************************************************)

\* The ledger's state is changed, so that its writer can't change bookies any more; or it was before.
Claim(r) ==
    /\ recovery[r].stage = "idle"
    /\ meta.state # "closed"
    /\ meta' = IF meta.state = "open" THEN [meta EXCEPT !.state = "recovering", !.version = @ + 1] ELSE meta
    /\ recovery' = [recovery EXCEPT ![r] = [@ EXCEPT
        !.stage = "fencing", !.version = meta'.version, !.to = meta.ensembles,
        !.lac = FirstOfLast(meta.ensembles) - 1]]
    /\ UNCHANGED <<writer, carried, sent, taken, stored, fenced>>

\* One that can't replace the metadata any more finds the ledger closed, and is done. What it could still do until it
\* looks would only fence more bookies.
GoesOn(r, stage) == recovery[r].stage = stage /\ IsUnchanged(recovery[r].version)

\* A bookie is fenced, and tells its LAC.
Fence(r) == \E bookie \in BookiesOf(LastEnsemble(meta.ensembles)) \ recovery[r].answered :
    /\ GoesOn(r, "fencing")
    /\ fenced' = fenced \cup {bookie}
    /\ recovery' = [recovery EXCEPT ![r].answered = @ \cup {bookie}, ![r].lac = Heard(@, Told(bookie))]
    /\ UNCHANGED <<meta, writer, carried, sent, taken, stored>>

\* From the last entry that is known to be acknowledged on, or from where the last ensemble begins.
BeginReading(r) ==
    LET one == recovery[r]
    IN /\ GoesOn(r, "fencing")
       /\ IsFenced(LastEnsemble(meta.ensembles), one.answered)
       /\ recovery' = [recovery EXCEPT ![r] = [@ EXCEPT
            !.stage = "reading", !.answered = {}, !.start = Max(one.lac, FirstOfLast(meta.ensembles))]]
       /\ UNCHANGED <<meta, writer, carried, sent, taken, stored, fenced>>

\* The first entry that was not found.
Sought(one) == CHOOSE entry \in one.start .. Behind + 1 :
    entry \notin one.found /\ one.start .. entry - 1 \subseteq one.found

AbsentFrom(one, entry) == {pair[1] : pair \in {p \in one.absent : p[2] = entry}}
HasEnd(one) == IsAbsent(Sought(one), AbsentFrom(one, Sought(one)))

\* Several entries may be looked for at a time.
Read(r) ==
    LET one == recovery[r]
    IN /\ GoesOn(r, "reading")
       /\ ~HasEnd(one)
       /\ \E entry \in (one.start .. Min(Behind, Sought(one) + ReadAheadMax)) \ one.found :
            \E bookie \in WriteSet(meta.ensembles, entry) :
                /\ <<bookie, entry>> \notin one.absent
                /\ fenced' = fenced \cup FencedByRead(bookie)
                /\ \/ /\ <<bookie, entry>> \in stored
                      /\ recovery' = [recovery EXCEPT ![r].found = @ \cup {entry},
                                                      ![r].absent = {pair \in @ : pair[2] # entry}]
                   \/ /\ MaySayAbsent(bookie, entry)
                      /\ recovery' = [recovery EXCEPT ![r].absent = @ \cup {<<bookie, entry>>}]
       /\ UNCHANGED <<meta, writer, carried, sent, taken, stored>>

\* What was found, with all before it, is added wherever it belongs, fenced or not; also after whoever sent it died,
\* and at a bookie that has been replaced meanwhile.
WriteBack(r) ==
    LET one == recovery[r]
    IN /\ one.stage \in {"reading", "closed"}
       /\ \E entry \in one.start .. Sought(one) - 1 :
            LET replaced == IF meta.state = "closed" THEN {} ELSE WriteSet(meta.ensembles, entry)
            IN \E bookie \in WriteSet(one.to, entry) \cup replaced :
                /\ <<bookie, entry>> \notin stored
                /\ stored' = stored \cup {<<bookie, entry>>}
       /\ UNCHANGED <<meta, writer, carried, sent, taken, fenced, recovery>>

\* Another bookie for one that fails: committed together with the end.
ChangeBack(r) ==
    LET one == recovery[r]
    IN /\ GoesOn(r, "reading")
       /\ one.changes < RecoveryChangesMax
       /\ \E first \in one.start .. Sought(one) - 1, members \in Replacements(one.to) :
            /\ \A entry \in one.start .. first - 1 : IsBack(one.to, entry)
            /\ recovery' = [recovery EXCEPT ![r] = [@ EXCEPT
                    !.changes = @ + 1, !.to = From(first, one.to, members)]]
       /\ UNCHANGED <<meta, writer, carried, sent, taken, stored, fenced>>

Close(r) ==
    LET one == recovery[r]
        last == Sought(one) - 1
    IN /\ GoesOn(r, "reading")
       /\ HasEnd(one)
       /\ last >= one.lac
       /\ \A entry \in one.start .. last : IsBack(one.to, entry)
       /\ meta' = [state |-> "closed", version |-> meta.version + 1, last |-> last,
                   ensembles |-> UpTo(last, ClosedWith(one))]
       /\ recovery' = [recovery EXCEPT ![r].stage = "closed"]
       /\ UNCHANGED <<writer, carried, sent, taken, stored, fenced>>

-----------------------------------------------------------------------------

Init ==
    \E members \in FirstMembers(Bookies) :
        LET ensembles == [first \in {1} |-> members]
        IN /\ meta = [state |-> "open", version |-> 1, ensembles |-> ensembles, last |-> 0]
           /\ writer = [version |-> 1, ensembles |-> ensembles, next |-> 1, lac |-> 0, closed |-> FALSE]
           /\ carried = [entry \in Entries |-> 0]
           /\ sent = {}
           /\ taken = {}
           /\ stored = {}
           /\ fenced = {}
           /\ recovery = [r \in Recoverers |->
                [stage |-> "idle", version |-> 0, to |-> <<>>, answered |-> {}, lac |-> 0,
                 start |-> 0, found |-> {}, absent |-> {}, changes |-> 0]]

Write == AppendEntry \/ Arrive \/ Acknowledge \/ ChangeBookie \/ CloseByWriter

Recover(r) ==
    Claim(r) \/ Fence(r) \/ BeginReading(r) \/ Read(r) \/ WriteBack(r) \/ ChangeBack(r) \/ Close(r)

Next == Write \/ \E r \in Recoverers : Recover(r)

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                         *)
(***************************************************************************)

\* Every acknowledged entry is in the closed ledger.
Kept == meta.state = "closed" => writer.lac <= meta.last

\* And at its place: an ack quorum of the bookies that the metadata name for it has it. So for all of a closed ledger.
InPlace == \A entry \in 1 .. (IF meta.state = "closed" THEN meta.last ELSE writer.lac) :
    Cardinality(Copies(meta.ensembles, entry)) >= AckQuorum

\* Nobody reads as committed what the closed ledger lacks. Copies are never lost, so what was read once is told still.
OnlyCommitted == \A bookie \in Bookies :
    Committed(bookie) <= IF meta.state = "closed" THEN meta.last ELSE writer.lac

\* Whoever asks enough bookies for the LAC hears one not older than that in the packet of the last acknowledged entry.
Fresh == writer.lac > 0 /\ meta.state # "closed" =>
    LET members == LastEnsemble(meta.ensembles)
        known == FirstOfLast(meta.ensembles) - 1
    IN /\ \A asked \in SUBSET BookiesOf(members) : IsHeard(members, asked) =>
            \E lac \in {known} \cup {Told(bookie) : bookie \in asked} : lac >= carried[writer.lac]
       /\ \A r \in Recoverers : recovery[r].stage = "reading" => recovery[r].lac >= carried[writer.lac]

\* No recovery takes an acknowledged entry for lost.
NothingLost == \A r \in Recoverers :
    recovery[r].stage = "reading" /\ HasEnd(recovery[r]) => Sought(recovery[r]) > recovery[r].lac

\* A closed ledger never changes; so it is closed once.
ClosedOnce == [][meta.state = "closed" => meta' = meta]_vars
=============================================================================
