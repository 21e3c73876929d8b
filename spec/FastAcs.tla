------------------------------ MODULE FastAcs ------------------------------
(***************************************************************************)
(* One segment in two layers, as in appendix A of Fast ACS: a durable file *)
(* with one writer, a volatile cache of fixed-size chunks with several     *)
(* writers that duel, and a reader of both.                                *)
(*                                                                         *)
(* What the model grants the adversary:                                    *)
(*  - no lock exists between cache writers (locks only save work);         *)
(*  - a writer may be arbitrarily late between two of its steps, so that a *)
(*    complete chunk is overwritten by a partial one and the published     *)
(*    length goes back;                                                    *)
(*  - a write may reach any subset of the replicas, the empty one too;     *)
(*  - any replica of any chunk, and the published length, vanish any time; *)
(*  - a writer may die at any step, and another begin anywhere;            *)
(*  - what the reader hears of the durable length may be stale.            *)
(*                                                                         *)
(* What must hold all the same: `Safety`, `OnlyDurable` and `Progress`.    *)
(*                                                                         *)
(* A byte is identified by its position, so that a byte in a wrong place   *)
(* is a wrong byte. Positions are 1-based here, chunks are numbered from 0.*)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Chunks,      \* how many chunks the whole segment has
    ChunkBytes,  \* bytes in a complete chunk
    Writers,     \* the cache writers
    Replicas,    \* the replicas of the data cell
    Disciplined  \* TRUE: a cache writer writes each of its chunks once, publishes after the last, begins anew after that.
                 \* FALSE: it only remembers a length that was once durable, and writes any chunk up to it and publishes it
                 \* in any order, at any time, any number of times. That allows everything that TRUE allows, and more, with
                 \* far fewer states.

ASSUME Chunks \in Nat \ {0} /\ ChunkBytes \in Nat \ {0}

VARIABLES
    durable,     \* length of the durable file; its bytes are kBytes[1..durable]
    cell,        \* [Replicas -> [ChunkNumbers -> what this replica holds, <<>> when it holds nothing]]
    published,   \* the cached length in the metadata cell; 0 when it is lost
    writer,      \* [Writers -> [target, todo]]; target = 0: idle
    readBytes,   \* what the reader has handed out, in order
    known,       \* the furthest length the reader has learned of; never goes back
    stage        \* which read the reader tries next: "relaxed", "consistent", "durable"

vars == <<durable, cell, published, writer, readBytes, known, stage>>

SegmentBytes == Chunks * ChunkBytes
ChunkNumbers == 0 .. Chunks - 1
kBytes == [i \in 1 .. SegmentBytes |-> i]

Min(a, b) == IF a < b THEN a ELSE b
ChunkOf(position) == (position - 1) \div ChunkBytes   \* the chunk that holds a byte
Start(chunk) == chunk * ChunkBytes                    \* how many bytes lie before a chunk
End(chunk) == (chunk + 1) * ChunkBytes                \* how many bytes lie up to its end
Idle == [target |-> 0, todo |-> {}]

(***************************************************************************)
(* The rules that correctness rests on. spec/bugs/ breaks them one by one. *)
(***************************************************************************)

\* What a writer stores for a chunk: always from the chunk's beginning.
ChunkValue(chunk, target) == SubSeq(kBytes, Start(chunk) + 1, Min(target, End(chunk)))

\* How far a writer that begins now will go: never beyond what is durable.
ShadowLimit == durable

\* Which replicas a write may reach.
Reachable == SUBSET Replicas

\* Where a writer may begin.
FirstChunks == IF Disciplined THEN 0 .. ChunkOf(ShadowLimit) ELSE {0}

\* When a writer may publish its target: every chunk below it has been written.
MayPublish(w) == Disciplined => writer[w].todo = {}

\* What the reader makes of a length it is told: its own never goes back.
Learn(length) == IF length > known THEN length ELSE known

\* What the reader takes out of a chunk: the bytes that are there, from its own position on, up to `goal`.
Taken(chunk, value, goal) == SubSeq(value, Len(readBytes) - Start(chunk) + 1, Min(Len(value), goal - Start(chunk)))

\* Which read follows one that came short. With a single replica there is nothing to agree with.
AfterShort == IF stage = "relaxed" /\ Cardinality(Replicas) > 1 THEN "consistent" ELSE "durable"

\* Whether durable lengths are also asked from the store itself.
AsksStore == TRUE

(***************************************************************************)
(* The durable writer. Longer appends are several of these in a row: no    *)
(* other step can tell.                                                    *)
(***************************************************************************)

AppendDurable ==
    /\ durable < SegmentBytes
    /\ durable' = durable + 1
    /\ UNCHANGED <<cell, published, writer, readBytes, known, stage>>

(***************************************************************************)
(* A cache writer. It takes everything durable (a smaller target is a      *)
(* writer that began earlier) from some chunk on: from where it was, from  *)
(* where another writer left off, or from the current one after an outage  *)
(* (section 3, "Start Position for Cache Copies"). Its chunks go out in    *)
(* any order, which covers the parallel writes of complete chunks; writes  *)
(* of one writer to one chunk are ordered, as one target follows another.  *)
(***************************************************************************)

BeginShadow(w) ==
    /\ Disciplined => writer[w].target = 0
    /\ ShadowLimit > 0
    /\ \E first \in FirstChunks :
        writer' = [writer EXCEPT ![w] = [target |-> ShadowLimit, todo |-> first .. ChunkOf(ShadowLimit)]]
    /\ UNCHANGED <<durable, cell, published, readBytes, known, stage>>

WriteChunk(w) == \E chunk \in writer[w].todo :
    /\ \E reached \in Reachable :
        cell' = [r \in Replicas |->
                    IF r \in reached
                    THEN [cell[r] EXCEPT ![chunk] = ChunkValue(chunk, writer[w].target)]
                    ELSE cell[r]]
    /\ writer' = IF Disciplined THEN [writer EXCEPT ![w].todo = @ \ {chunk}] ELSE writer
    /\ UNCHANGED <<durable, published, readBytes, known, stage>>

Publish(w) ==
    /\ writer[w].target > 0
    /\ MayPublish(w)
    /\ published' = writer[w].target
    /\ writer' = IF Disciplined THEN [writer EXCEPT ![w] = Idle] ELSE writer
    /\ UNCHANGED <<durable, cell, readBytes, known, stage>>

Die(w) ==
    /\ writer[w].target > 0
    /\ writer' = [writer EXCEPT ![w] = Idle]
    /\ UNCHANGED <<durable, cell, published, readBytes, known, stage>>

(***************************************************************************)
(* Time to live, eviction, a backend's death.                              *)
(***************************************************************************)

LoseChunk == \E r \in Replicas, chunk \in ChunkNumbers :
    /\ cell[r][chunk] # <<>>
    /\ cell' = [cell EXCEPT ![r][chunk] = <<>>]
    /\ UNCHANGED <<durable, published, writer, readBytes, known, stage>>

LoseLength ==
    /\ published # 0
    /\ published' = 0
    /\ UNCHANGED <<durable, cell, writer, readBytes, known, stage>>

(***************************************************************************)
(* The reader.                                                             *)
(***************************************************************************)

\* The watcher hears the cached length.
PollCell ==
    /\ Len(readBytes) = known
    /\ Learn(published) # known
    /\ known' = Learn(published)
    /\ UNCHANGED <<durable, cell, published, writer, readBytes, stage>>

\* It hears the durable length, from the metadata cell or from the store; what the cell says may be stale.
PollDurable ==
    /\ AsksStore
    /\ Len(readBytes) = known
    /\ known' \in known + 1 .. durable
    /\ UNCHANGED <<durable, cell, published, writer, readBytes, stage>>

\* A read of the chunk at the reader's position from any one replica. A consistent read answers the newest of two of three,
\* which with duelling writers is no more than what some replica holds, so it is the same step taken once more.
ReadCell ==
    /\ Len(readBytes) < known
    /\ stage # "durable"
    /\ LET chunk == ChunkOf(Len(readBytes) + 1)
           goal == Min(known, End(chunk))
       IN \E r \in Replicas :
            LET bytes == Taken(chunk, cell[r][chunk], goal)
            IN IF Len(readBytes) + Len(bytes) = goal
               THEN /\ readBytes' = readBytes \o bytes
                    /\ stage' = "relaxed"
               ELSE /\ readBytes' \in {readBytes, readBytes \o bytes}   \* what did come may be used
                    /\ stage' = AfterShort
    /\ UNCHANGED <<durable, cell, published, writer, known>>

\* One durable read for everything that is missing; it may itself come back short.
ReadDurable ==
    /\ Len(readBytes) < known
    /\ stage = "durable"
    /\ \E upto \in Len(readBytes) + 1 .. Min(known, durable) :
        readBytes' = readBytes \o SubSeq(kBytes, Len(readBytes) + 1, upto)
    /\ stage' = "relaxed"
    /\ UNCHANGED <<durable, cell, published, writer, known>>

-----------------------------------------------------------------------------

Init ==
    /\ durable = 0
    /\ cell = [r \in Replicas |-> [chunk \in ChunkNumbers |-> <<>>]]
    /\ published = 0
    /\ writer = [w \in Writers |-> Idle]
    /\ readBytes = <<>>
    /\ known = 0
    /\ stage = "relaxed"

CacheWriter == \E w \in Writers : BeginShadow(w) \/ WriteChunk(w) \/ Publish(w) \/ Die(w)
Loss == LoseChunk \/ LoseLength
Poll == PollCell \/ PollDurable
Read == ReadCell \/ ReadDurable

Next == AppendDurable \/ CacheWriter \/ Loss \/ Poll \/ Read

\* The durable writer and the reader keep going. Nothing is asked of the cache or of its writers: they may stop for ever,
\* or duel and lose for ever.
Fairness == WF_vars(AppendDurable) /\ WF_vars(PollDurable) /\ WF_vars(Read)

Spec == Init /\ [][Next]_vars /\ Fairness

(***************************************************************************)
(* What must hold.                                                         *)
(***************************************************************************)

TypeOK ==
    /\ durable \in 0 .. SegmentBytes
    /\ \A r \in Replicas, chunk \in ChunkNumbers : Len(cell[r][chunk]) <= ChunkBytes
    /\ published \in 0 .. SegmentBytes
    /\ \A w \in Writers : writer[w].target \in 0 .. SegmentBytes /\ writer[w].todo \subseteq ChunkNumbers
    /\ known \in 0 .. SegmentBytes
    /\ stage \in {"relaxed", "consistent", "durable"}

\* Appendix A's Invariant: consumers receive the bytes in the order in which they were produced, without gaps.
Safety == readBytes = [i \in 1 .. Len(readBytes) |-> kBytes[i]]

\* A reader never sees a byte that is not durable at the source.
OnlyDurable == Len(readBytes) <= durable /\ published <= durable

\* What a replica holds of a chunk is right wherever it holds anything, however partial (section 2.2).
ChunksTrue == \A r \in Replicas, chunk \in ChunkNumbers :
    cell[r][chunk] = SubSeq(kBytes, Start(chunk) + 1, Start(chunk) + Len(cell[r][chunk]))

\* Appendix A's Termination, without its escape: the reader does get everything.
Progress == <>(readBytes = kBytes)

\* What the reader has handed out is never taken back, and its length never goes back.
Forward == [][known' >= known /\ Len(readBytes') >= Len(readBytes)]_vars

(***************************************************************************)
(* Progress by rank, where TLC can't keep the graph of all states that it  *)
(* needs for Progress itself. It looks at single states (`Goes`) and single*)
(* steps (`Advance`) instead:                                              *)
(*  - no step lowers the rank, and it has a bound;                         *)
(*  - each step of those that keep going raises it;                        *)
(*  - while bytes are missing, one of those steps can be taken, and as long*)
(*    as the rank stands still it can still be taken.                      *)
(* Say that the rank stood still for ever, and bytes were missing. Then one*)
(* of those steps could be taken for ever, by weak fairness it would be,   *)
(* and the rank would rise. So nothing is missing in the end: Progress.    *)
(* All that is spoken of here is in `View`.                                *)
(***************************************************************************)

Rank == 3 * (durable + known + Len(readBytes))
            + (CASE stage = "relaxed" -> 0 [] stage = "consistent" -> 1 [] stage = "durable" -> 2)

MayAppend == durable < SegmentBytes
MayPoll == AsksStore /\ Len(readBytes) = known /\ known < durable
MayRead == Len(readBytes) < known /\ (stage = "durable" => Len(readBytes) < durable)

Goes ==
    /\ MayAppend = ENABLED <<AppendDurable>>_vars
    /\ MayPoll = ENABLED <<PollDurable>>_vars
    /\ MayRead = ENABLED <<Read>>_vars
    /\ readBytes = kBytes \/ MayAppend \/ MayPoll \/ MayRead

Advance == [][
    /\ Rank' >= Rank
    /\ AppendDurable \/ PollDurable \/ Read => Rank' > Rank
    /\ Rank' = Rank => MayAppend' = MayAppend /\ MayPoll' = MayPoll /\ MayRead' = MayRead]_vars

-----------------------------------------------------------------------------
(***************************************************************************)
(* For TLC: which states need not be told apart.                           *)
(***************************************************************************)

\* Writers are alike, and so are replicas. Safety only.
Symmetry == Permutations(Writers) \cup Permutations(Replicas)

\* What can still matter to the reader. It never returns to bytes it has handed out: chunks that hold nothing further are as
\* good as lost. A published length tells it nothing that it may not hear as a durable length as well, unless that length is
\* beyond what is durable, which OnlyDurable forbids. An undisciplined writer whose length the reader has passed is as good
\* as idle: all it can still do is to put a chunk or a length that is as good as lost in the place of another, and losses do
\* that as well. So states with the same view reach the same views, and agree on Safety and OnlyDurable. For safety only.
View == <<
    durable,
    [r \in Replicas |-> [chunk \in ChunkNumbers |->
        IF Start(chunk) + Len(cell[r][chunk]) > Len(readBytes) THEN cell[r][chunk] ELSE <<>>]],
    IF published > durable THEN published ELSE 0,
    [w \in Writers |-> IF ~Disciplined /\ writer[w].target <= Len(readBytes) THEN Idle ELSE writer[w]],
    readBytes, known, stage >>
=============================================================================
