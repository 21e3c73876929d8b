----------------------------- MODULE Segments -----------------------------
(***************************************************************************)
(* One shard whose owner crashes: what FastAcs takes for granted, a file   *)
(* that is never rewritten, and the keys of its chunks.                    *)
(*                                                                         *)
(* After an unclean close the last segment is sealed at the length that    *)
(* was recovered and a new one begins, with a higher term. A segment of    *)
(* which nothing survived, not even the record that it began, leaves its   *)
(* number to the next, and then only the term tells the two apart.         *)
(*                                                                         *)
(* The cache outlives the owner, and one chunk write of a former owner may *)
(* arrive at any later time. The rest of the cache's adversary is FastAcs. *)
(*                                                                         *)
(* No two appended bytes are alike, so that a byte of another incarnation  *)
(* in the right place is a wrong byte.                                     *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    BytesMax,     \* bytes appended in all
    CrashesMax,
    RollsMax,     \* segments closed cleanly
    ChunkBytes,
    Interval      \* FALSE: durability fsync; TRUE: durability interval, which may deliver and then lose

VARIABLES
    files,        \* the segments in order: [number, term, bytes, synced, sealed]; synced: the length that a crash leaves
    appended,     \* how many bytes were ever appended; the next one is appended + 1
    crashes,
    rolls,
    cell,         \* [Keys -> bytes]
    late,         \* the chunk write that is under way: {} or {[key, value]}
    told,         \* [Segment names -> the last length published for it]; a lost one reads as 0
    place,        \* where the reader is: [number, term, position]
    got           \* what it has handed out: a sequence of [number, term, position, byte], positions from 1

vars == <<files, appended, crashes, rolls, cell, late, told, place, got>>

Last == files[Len(files)]
Min(a, b) == IF a < b THEN a ELSE b
Start(chunk) == chunk * ChunkBytes
End(chunk) == (chunk + 1) * ChunkBytes

Numbers == 1 .. CrashesMax + RollsMax + 1
Terms == 0 .. CrashesMax + 1
ChunkNumbers == 0 .. (BytesMax - 1) \div ChunkBytes
Names == [number : Numbers, term : Terms]
Keys == [number : Numbers, term : Terms, chunk : ChunkNumbers]

NewSegment(number, term) == [number |-> number, term |-> term, bytes |-> <<>>, synced |-> 0, sealed |-> FALSE]

(***************************************************************************)
(* The rules. spec/bugs/segments-*.cfg break them.                         *)
(***************************************************************************)

\* How far readers and cache may see a segment: what its durability has made of it.
Durable(file) == IF Interval THEN Len(file.bytes) ELSE file.synced

\* What names a chunk.
Key(number, term, chunk) == [number |-> number, term |-> term, chunk |-> chunk]

\* How much of the last segment recovery keeps: all that was synced, and of the rest what happens to be whole.
Recoverable(file) == file.synced .. Len(file.bytes)

\* What recovery leaves: the last segment sealed, or gone if no trace of it was ever synced; then a new one, with a higher term.
Recovered(kept) ==
    LET before == SubSeq(files, 1, Len(files) - 1)
        sealed == [Last EXCEPT !.bytes = SubSeq(@, 1, kept), !.synced = kept, !.sealed = TRUE]
        term == crashes + 2
    IN {Append(Append(before, sealed), NewSegment(Last.number + 1, term))}
        \cup (IF kept = 0 THEN {Append(before, NewSegment(Last.number, term))} ELSE {})

(***************************************************************************)
(* The owner.                                                              *)
(***************************************************************************)

AppendByte ==
    /\ appended < BytesMax
    /\ appended' = appended + 1
    /\ files' = [files EXCEPT ![Len(files)].bytes = Append(@, appended + 1)]
    /\ UNCHANGED <<crashes, rolls, cell, late, told, place, got>>

Sync ==
    /\ Last.synced < Len(Last.bytes)
    /\ files' = [files EXCEPT ![Len(files)].synced = Len(Last.bytes)]
    /\ UNCHANGED <<appended, crashes, rolls, cell, late, told, place, got>>

Publish ==
    /\ told' = [told EXCEPT ![[number |-> Last.number, term |-> Last.term]] = Durable(Last)]
    /\ UNCHANGED <<files, appended, crashes, rolls, cell, late, place, got>>

SendChunk ==
    /\ late = {}
    /\ \E chunk \in ChunkNumbers :
        /\ Start(chunk) < Durable(Last)
        /\ late' = {[key |-> Key(Last.number, Last.term, chunk),
                     value |-> SubSeq(Last.bytes, Start(chunk) + 1, Min(Durable(Last), End(chunk)))]}
    /\ UNCHANGED <<files, appended, crashes, rolls, cell, told, place, got>>

\* By size or time. The closed segment is synced first, whatever the durability.
Roll ==
    /\ rolls < RollsMax
    /\ Last.synced = Len(Last.bytes)
    /\ Last.synced > 0
    /\ rolls' = rolls + 1
    /\ files' = Append([files EXCEPT ![Len(files)].sealed = TRUE], NewSegment(Last.number + 1, Last.term))
    /\ UNCHANGED <<appended, crashes, cell, late, told, place, got>>

CrashAndRecover ==
    /\ crashes < CrashesMax
    /\ crashes' = crashes + 1
    /\ \E kept \in Recoverable(Last) : files' \in Recovered(kept)
    /\ UNCHANGED <<appended, rolls, cell, late, told, place, got>>

(***************************************************************************)
(* The cache.                                                              *)
(***************************************************************************)

Arrive == \E write \in late :
    /\ cell' = [cell EXCEPT ![write.key] = write.value]
    /\ late' = {}
    /\ UNCHANGED <<files, appended, crashes, rolls, told, place, got>>

Lose == \E key \in Keys :
    /\ cell[key] # <<>>
    /\ cell' = [cell EXCEPT ![key] = <<>>]
    /\ UNCHANGED <<files, appended, crashes, rolls, late, told, place, got>>

(***************************************************************************)
(* The reader. It goes by published or recorded lengths.                   *)
(***************************************************************************)

Here == {i \in 1 .. Len(files) : files[i].number = place.number /\ files[i].term = place.term}

HandOut(bytes) ==
    /\ got' = got \o [i \in 1 .. Len(bytes) |->
                [number |-> place.number, term |-> place.term, position |-> place.position + i, byte |-> bytes[i]]]
    /\ place' = [place EXCEPT !.position = @ + Len(bytes)]

ReadCell ==
    LET chunk == place.position \div ChunkBytes
        value == cell[Key(place.number, place.term, chunk)]
        known == told[[number |-> place.number, term |-> place.term]]
        bytes == SubSeq(value, place.position - Start(chunk) + 1, Min(Len(value), known - Start(chunk)))
    IN /\ chunk \in ChunkNumbers
       /\ bytes # <<>>
       /\ HandOut(bytes)
       /\ UNCHANGED <<files, appended, crashes, rolls, cell, late, told>>

ReadDurable == \E i \in Here :
    /\ place.position < Durable(files[i])
    /\ HandOut(SubSeq(files[i].bytes, place.position + 1, Durable(files[i])))
    /\ UNCHANGED <<files, appended, crashes, rolls, cell, late, told>>

\* From the end of a sealed segment, or from one that is gone, to the one that follows.
NextSegment ==
    /\ \A i \in Here : files[i].sealed /\ place.position >= Len(files[i].bytes)
    /\ \E i \in 1 .. Len(files) :
        /\ IF Here = {} THEN files[i].number >= place.number /\ \A j \in 1 .. i - 1 : files[j].number < place.number
                        ELSE \E j \in Here : i = j + 1
        /\ place' = [number |-> files[i].number, term |-> files[i].term, position |-> 0]
    /\ UNCHANGED <<files, appended, crashes, rolls, cell, late, told, got>>

-----------------------------------------------------------------------------

Init ==
    /\ files = <<NewSegment(1, 1)>>
    /\ appended = 0
    /\ crashes = 0
    /\ rolls = 0
    /\ cell = [key \in Keys |-> <<>>]
    /\ late = {}
    /\ told = [name \in Names |-> 0]
    /\ place = [number |-> 1, term |-> 1, position |-> 0]
    /\ got = <<>>

Read == ReadCell \/ ReadDurable \/ NextSegment

Next == AppendByte \/ Sync \/ Publish \/ SendChunk \/ Roll \/ CrashAndRecover \/ Arrive \/ Lose \/ Read

\* What was appended becomes durable in the end, and the reader keeps going.
Spec == Init /\ [][Next]_vars /\ WF_vars(Sync) /\ WF_vars(Read)

(***************************************************************************)
(* What must hold.                                                         *)
(***************************************************************************)

RECURSIVE Bytes(_, _)
Bytes(list, i) == IF i > Len(list) THEN <<>> ELSE SubSeq(list[i].bytes, 1, list[i].synced) \o Bytes(list, i + 1)

\* The shard as it would be after a crash right here, at worst.
Log == Bytes(files, 1)

IsPrefix(a, b) == Len(a) <= Len(b) /\ a = SubSeq(b, 1, Len(a))

\* Durability fsync: what was handed out is the beginning of the shard, for good.
Safety == Interval \/ IsPrefix([i \in 1 .. Len(got) |-> got[i].byte], Log)

\* Either durability: wherever the segment still has the byte, it is the one that was handed out.
Agree == \A i \in 1 .. Len(got), j \in 1 .. Len(files) :
    (files[j].number = got[i].number /\ files[j].term = got[i].term /\ got[i].position <= Len(files[j].bytes))
        => files[j].bytes[got[i].position] = got[i].byte

\* Either durability: positions have no gaps, and segments and terms only go up.
InOrder == \A i \in 1 .. Len(got) - 1 :
    \/ got[i + 1].number = got[i].number /\ got[i + 1].term = got[i].term /\ got[i + 1].position = got[i].position + 1
    \/ /\ got[i + 1].position = 1
       /\ got[i + 1].number >= got[i].number
       /\ got[i + 1].term >= got[i].term
       /\ got[i + 1].number > got[i].number \/ got[i + 1].term > got[i].term

\* Either durability: what was synced is never lost nor changed.
Kept == [][IsPrefix(Log, Log')]_vars

\* The reader comes to the end of the last segment again and again, whatever happened to those before.
Progress == []<>(place.number = Last.number /\ place.term = Last.term /\ place.position >= Len(Last.bytes))
=============================================================================
