------------------------------- MODULE Bugs -------------------------------
(***************************************************************************)
(* Ways to break the rules of FastAcs, one operator each. A configuration  *)
(* in bugs/ puts one in the place of the right operator, and says which    *)
(* property TLC must then find violated.                                   *)
(***************************************************************************)
EXTENDS FastAcs

\* In place of MayPublish.
AlwaysPublish(w) == writer[w].target > 0

\* In place of a step that shall not happen, or of AsksStore.
Never == FALSE

\* In place of ChunkValue: a partial chunk written from its middle, as if the cell kept what it had before.
ValueFromMiddle(chunk, target) == SubSeq(kBytes, Start(chunk) + 1 + ChunkBytes \div 2, Min(target, End(chunk)))

\* In place of Taken: the published length is believed and the chunk's own length is not looked at; what is missing is
\* whatever lies in the buffer.
TakenBlindly(chunk, value, goal) ==
    [i \in 1 .. goal - Len(readBytes) |->
        LET at == Len(readBytes) - Start(chunk) + i IN IF at <= Len(value) THEN value[at] ELSE 0]

\* In place of ShadowLimit: the cache runs ahead of the durable file.
LimitBeyondDurable == Min(durable + 1, SegmentBytes)

\* In place of Learn: the reader follows a published length back.
LearnAnything(length) == length

\* In place of AfterShort: a short chunk is asked from the cell again and again.
CellAgain == "relaxed"

\* A gentle world, in which nothing is lost, every write reaches every replica and a writer always begins at the first chunk.
\* There a reader that believes lengths is right, as long as a length is published after the chunks below it.
EveryReplica == {Replicas}
FirstChunkOnly == {0}
=============================================================================
