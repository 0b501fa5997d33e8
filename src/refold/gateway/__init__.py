"""The gateway: change the base URL, and the conversation never hits the wall.

A request carries its whole history. It is recognised by the hashes of what it says (`lines`), its branch is opened or taken from
those in use (`hosting`, `table`), what is new is added and the window is made in one act (`hosted`), and what leaves is the
client's own bytes, or what the window shows (`outgoing`). The answer passes by as it comes (`relay`), is read along (`watching`)
and kept beside the call (`ticket`).

    client → access → limits → incoming → lines → hosting → outgoing → relay → upstream
                                                    store ←  ticket  ← watching ←

Which provider key a call leaves with is decided in `credentials`; who may name an id that a provider keeps, in `provider_state`.

Whatever goes wrong on our side, the request goes on as it came.
"""
